//! Looks for the room that objects wait for: others delete volumes, extend a pool or a volume group, or empty the trash, and
//! nobody tells the reconciler.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use drumlin_crd::ObjectKey;

use crate::{
    client::Room,
    engine::Engine,
    record::{Body, Of, Record},
};

/// How often the room of a class is looked at that an object waits for. Where none waits, nothing is asked.
const LOOK: Duration = Duration::from_secs(10);

/// What an object waits for: the name of a class, empty for the default one, and the number of bytes that it lacks, 0 if that is
/// not known.
type Need = (String, u64);

impl Engine {
    /// Retries objects without room as soon as there is enough, forever.
    pub(crate) async fn follow_capacity(&self) {
        // The room of each class when it was retried in vain.
        let mut tried = HashMap::new();
        loop {
            tokio::time::sleep(self.shared.time_lapse(LOOK)).await;
            self.retry_where_room_is(&mut tried).await;
        }
    }

    async fn retry_where_room_is(&self, tried: &mut HashMap<String, Room>) {
        let mut waiting: BTreeMap<String, Vec<(ObjectKey, u64)>> = BTreeMap::new();
        for key in self.shared.keys_of(|record| need(record).is_some()) {
            if let Some((class, lacks)) = self.shared.with(&key, need).flatten() {
                waiting.entry(class).or_default().push((key, lacks));
            }
        }
        tried.retain(|class, _| waiting.contains_key(class));
        for (class, objects) in waiting {
            let Ok(room) = self.client.room(&class).await else {
                continue;
            };
            if tried.get(&class) == Some(&room) {
                continue;
            }
            for (key, _) in objects.iter().filter(|(_, lacks)| has_room(room, *lacks)) {
                self.reset(key);
            }
            tried.insert(class, room);
        }
    }
}

/// What an object waits for, if it waits for room.
fn need(record: &Record) -> Option<Need> {
    let ready = record.condition("Ready")?;
    if ready.reason != "InsufficientCapacity" || record.is_paused() {
        return None;
    }
    let Body::Volume(Of { spec, status }) = &record.body else {
        return Some(Need::default());
    };
    let class = status.device_class.as_ref().or(spec.device_class.as_ref());
    let wanted = spec.capacity.bytes().unwrap_or(0);
    let has = status.capacity.as_ref().and_then(|has| has.bytes().ok());
    Some((
        class.cloned().unwrap_or_default(),
        wanted.saturating_sub(has.unwrap_or(0)),
    ))
}

fn has_room(room: Room, lacks: u64) -> bool {
    room.available.min(room.largest) >= lacks
}
