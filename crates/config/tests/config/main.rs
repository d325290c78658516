//! What configurations lead to, and what is said about those that lead nowhere.

mod accepted;
mod data_layer;
mod effective;
mod flow_control;
mod parameters;
mod parsers;
mod plugins;
mod profiles;
mod reload;
mod robustness;
mod sections;
mod shape;
mod support;
