mod duplex;
mod endings;
mod limits;
mod modes;
mod properties;
mod revocation;
mod script;
