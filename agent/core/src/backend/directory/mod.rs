//! The directory back end: images as files, with a JSON record beside each.
//!
//! ```text
//! <path>/node.json                 the marker: names the node that owns the images; their ids begin with it
//! <path>/volumes/<key>/image        the data: a sparse file, or one with all blocks reserved
//! <path>/volumes/<key>/record.json  its record: size and labels
//! <path>/snapshots/<key>/…          likewise
//! <path>/groups/<key>/record.json   a volume group: a record without data
//! <path>/group-snapshots/<key>/…    likewise
//! <path>/trash/<key>/…              a deleted volume
//! <path>/volumes/.making-<key>/     incomplete; removed on start and before the key is created again
//! <path>/volumes/.deleting-<key>/   being deleted; likewise
//! <path>/volumes/.record-<key>      a new record that will replace `<key>/record.json`
//! <path>/volumes/.image-<key>       new data that will replace `<key>/image`
//! <path>/volumes/.frozen-<key>      marker: the file system of this volume is frozen; thawed on start
//! <path>/volumes/.adopting-<key>/   an image file of others on its way in; completed on start if the file is in it
//! <path>/volumes/.releasing-<key>/  an image on its way out; back on start if the file is still in it
//! ```
//!
//! An image is created by the rename of its complete directory, and deleted by a rename, so that it is present
//! completely or not at all.

mod adopt_node;
mod attach;
mod class;
mod create;
mod foreign;
mod group_snapshot;
mod layout;
mod memory;
mod open_lock;
mod record;
mod rename;
mod rollback;
mod snapshot_copy;
mod survey;
mod watched;

pub use class::{Allocation, Directory, DirectorySettings, Missing};
use class::{Inner, UNIT};
pub use survey::{Leftover, LeftoverKind, Survey, SurveyedImage, survey};
