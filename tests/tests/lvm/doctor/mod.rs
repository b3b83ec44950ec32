//! `drumlin doctor` over volume groups: each check finds what it looks for, and is content once that is mended.

mod devices;
mod groups;
mod pools;
mod tags;
mod tools;
