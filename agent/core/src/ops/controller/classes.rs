//! The state of the device classes, for whoever shows it.

use crate::ops::{Class, Operations};
use crate::{
    backend::Capacity,
    types::{ClassName, ImageKind, Size},
};

/// The state of a device class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassState {
    /// The name of the class.
    pub name: ClassName,
    /// True for the class of volumes whose parameters name none.
    pub is_default: bool,
    /// Its remaining capacity.
    pub capacity: Capacity,
    /// Sum of the sizes of its volumes.
    pub promised: Size,
    /// Number of its volumes.
    pub volumes: u64,
    /// Why it is not ready.
    pub problem: Option<String>,
}

impl Operations {
    /// The state of all classes, the default class first. One that cannot be read is not ready.
    pub async fn class_states(&self) -> Vec<ClassState> {
        let read = |class: Class| async move {
            class.backend.check().await?;
            let capacity = class.backend.capacity().await?;
            Ok((capacity, class.backend.list(ImageKind::Volume).await?))
        };
        let read = self.of_each_class(read).await.into_iter();
        read.enumerate()
            .map(|(index, (class, read))| {
                let (capacity, volumes, problem) = match read {
                    Ok((capacity, volumes)) => (capacity, volumes, None),
                    Err(error) => (Capacity::default(), Vec::new(), Some(error.chain())),
                };
                let promised: u64 = volumes.iter().map(|volume| volume.size.bytes()).sum();
                ClassState {
                    name: class.name.clone(),
                    is_default: index == 0,
                    capacity,
                    promised: Size::try_from(promised).unwrap_or(Size::MAX),
                    volumes: u64::try_from(volumes.len()).unwrap_or(u64::MAX),
                    problem,
                }
            })
            .collect()
    }
}
