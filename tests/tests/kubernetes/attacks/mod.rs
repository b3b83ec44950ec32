//! What somebody can do who has stolen a token of ours, tried with all that it attacks really there.

mod agent;
mod controller;
mod editor;
mod trial;
mod victims;
