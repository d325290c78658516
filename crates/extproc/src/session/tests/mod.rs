mod duplex;
mod endings;
mod limits;
mod modes;
mod properties;
mod revocation;
mod rewriting;
mod script;
