//! The scraper and real servers on the loopback interface.

mod driver;
mod pages;
mod pool_gauges;
mod secured;
mod server;
