//! The state of the device classes, for whoever shows it.

use std::sync::Arc;

use crate::ops::{Class, Operations};
use crate::{
    backend::{Capacity, StorageKind, Utilization},
    types::{ClassName, Size},
};

/// The state of a device class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassState {
    /// The name of the class.
    pub name: ClassName,
    /// The type of its storage.
    pub kind: StorageKind,
    /// True for the class of volumes whose parameters name none.
    pub is_default: bool,
    /// What it uses of its storage; nothing while it is not ready.
    pub utilization: Utilization,
    /// True for a class in which nothing new is created on this node.
    pub is_retired: bool,
    /// Why it is not ready, if it is not.
    pub problem: Option<String>,
}

impl Operations {
    /// Reads the state of all classes, the default class first. One that cannot be read, or does not answer, is not
    /// ready.
    pub(crate) async fn class_states(&self) -> Arc<[ClassState]> {
        let read = |class: Class| async move {
            class.backend.check().await?;
            class.backend.utilization().await
        };
        let set = self.classes.now();
        let read = self.of_each_class(read).await.into_iter();
        let states = read.map(|(class, read)| {
            let is_retired = !set.is_open(&class);
            let problem = read.as_ref().err().map(crate::Error::chain);
            let mut utilization = read.unwrap_or_default();
            if is_retired {
                utilization.capacity = Capacity::default();
            }
            ClassState {
                kind: class.backend.kind(),
                is_default: set.default.as_ref() == Some(&class.name),
                name: class.name,
                utilization,
                is_retired,
                problem,
            }
        });
        states.collect()
    }
}

impl ClassState {
    /// Returns true if whoever knows the state `known` must be told this one.
    pub(crate) fn is_news_after(&self, known: &Self) -> bool {
        let (mine, other) = (&self.utilization, &known.utilization);
        let moved = |mine: Size, other: Size| {
            mine.bytes().abs_diff(other.bytes()) > self.tolerance().min(known.tolerance())
        };
        self.name != known.name
            || self.is_retired != known.is_retired
            || self.is_default != known.is_default
            || self.problem != known.problem
            || mine.volumes != other.volumes
            || mine.space.promised != other.space.promised
            || mine.space.size != other.space.size
            || step(mine.space.data_percent) != step(other.space.data_percent)
            || step(mine.space.metadata_percent) != step(other.space.metadata_percent)
            || moved(mine.capacity.available, other.capacity.available)
            || moved(mine.capacity.largest, other.capacity.largest)
    }

    /// Returns true if it should be read again soon: it is not ready, and volumes are to be created in it.
    pub(crate) fn is_in_trouble(&self) -> bool {
        self.problem.is_some() && !self.is_retired
    }

    /// The difference of capacities, in bytes, that is not news. The free space of a file system changes with each file
    /// that anybody writes; that of pools and volume groups with volumes only.
    fn tolerance(&self) -> u64 {
        match self.kind {
            StorageKind::Directory => self.utilization.space.size.bytes() / 100,
            StorageKind::Thin | StorageKind::Thick => 0,
        }
    }
}

/// The step of a percentage.
fn step(percent: Option<u32>) -> Option<u32> {
    percent.map(|percent| percent / 5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Space;

    fn state(kind: StorageKind, available: u64, data_percent: u32) -> ClassState {
        let available = Size::try_from(available).unwrap();
        ClassState {
            name: "default".parse().unwrap(),
            kind,
            is_default: true,
            utilization: Utilization {
                space: Space {
                    size: Size::from_mebibytes(100),
                    data_percent: Some(data_percent),
                    ..Space::default()
                },
                capacity: Capacity {
                    available,
                    largest: available,
                },
                volumes: 1,
                ..Utilization::default()
            },
            is_retired: false,
            problem: None,
        }
    }

    #[test]
    fn the_capacity_of_a_pool_is_always_news_and_that_of_a_file_system_from_one_percent() {
        use StorageKind::{Directory, Thick, Thin};
        let before = 50 << 20;
        for (kind, available, is_news) in [
            (Thin, before, false),
            (Thin, before - 1, true),
            (Thick, before + 1, true),
            (Directory, before - (1 << 20), false),
            (Directory, before + (1 << 20), false),
            (Directory, before - (1 << 20) - 1, true),
        ] {
            let (known, now) = (state(kind, before, 40), state(kind, available, 40));
            assert_eq!(now.is_news_after(&known), is_news, "{kind} {available}");
        }
    }

    #[test]
    fn a_percentage_is_news_when_it_crosses_a_step_of_five() {
        let with = |percent| state(StorageKind::Thin, 0, percent);
        for (known, now, is_news) in [
            (40, 44, false),
            (44, 45, true),
            (45, 44, true),
            (99, 100, true),
        ] {
            assert_eq!(with(now).is_news_after(&with(known)), is_news, "{now}");
        }
        let mut unknown = with(40);
        unknown.utilization.space.data_percent = None;
        assert!(unknown.is_news_after(&with(40)));
    }

    #[test]
    fn a_problem_the_size_volumes_and_what_is_promised_are_news() {
        let known = state(StorageKind::Directory, 0, 0);
        let changes: [fn(&mut ClassState); 5] = [
            |state| state.is_retired = true,
            |state| state.problem = Some("away".to_owned()),
            |state| state.utilization.volumes = 2,
            |state| state.utilization.space.promised = Size::from_kibibytes(4),
            |state| state.utilization.space.size = Size::from_mebibytes(101),
        ];
        for change in changes {
            let mut now = known.clone();
            change(&mut now);
            assert!(now.is_news_after(&known), "{now:?}");
        }
    }
}
