//! Many callers at once, on one object and on many.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use drumlin_proto::csi::v1::ListVolumesRequest;
use drumlin_tests::{
    agent::{Agent, is_over_lvm},
    requests::{create, delete, mounted, raw, snapshot},
};
use tonic::Code;

use crate::helpers::{mount, ok, unbind, unmount, volume};

/// How many callers there are at once: `DRUMLIN_CALLERS`, else 64, or 16 in the lab, which is slow.
fn callers() -> usize {
    let asked = std::env::var("DRUMLIN_CALLERS").ok();
    let usual = if is_over_lvm() { 16 } else { 64 };
    asked.map_or(usual, |number| {
        number.parse().expect("DRUMLIN_CALLERS is a number")
    })
}

#[tokio::test]
async fn many_callers_make_one_volume_of_one_name() {
    let agent = Agent::start().await;
    let calls: Vec<_> = (0..callers())
        .map(|_| {
            let mut controller = agent.controller();
            tokio::spawn(async move {
                // Whoever is told that another call runs asks again, and finds what that made.
                loop {
                    match controller
                        .create_volume(create("one", 8, &mounted("ext4")))
                        .await
                    {
                        Ok(answer) => return answer.into_inner().volume.unwrap().volume_id,
                        Err(status) => {
                            assert_eq!(status.code(), Code::Aborted, "{}", status.message());
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
        })
        .collect();
    let mut ids = BTreeSet::new();
    for call in calls {
        ids.insert(call.await.unwrap());
    }
    assert_eq!(ids.len(), 1);
    let list = ok(agent
        .controller()
        .list_volumes(ListVolumesRequest::default())
        .await);
    assert_eq!(list.entries.len(), 1);
}

#[tokio::test]
async fn many_callers_with_names_of_their_own_do_not_meet() {
    let agent = Arc::new(Agent::start().await);
    let calls: Vec<_> = (0..callers())
        .map(|index| {
            let agent = Arc::clone(&agent);
            let mut controller = agent.controller();
            tokio::spawn(async move {
                let name = format!("v{index}");
                let id = ok(controller.create_volume(create(&name, 1, &raw())).await)
                    .volume
                    .unwrap()
                    .volume_id;
                let taken = ok(controller.create_snapshot(snapshot(&name, &id)).await)
                    .snapshot
                    .unwrap();
                if index % 2 == 0 {
                    unbind(&agent, &taken.snapshot_id).await;
                    ok(controller.delete_volume(delete(&id)).await);
                }
                (id, taken.snapshot_id)
            })
        })
        .collect();
    let mut ids = BTreeSet::new();
    for call in calls {
        let (volume, snapshot) = call.await.unwrap();
        ids.extend([volume, snapshot]);
    }
    assert_eq!(ids.len(), 2 * callers());
    let list = ok(agent
        .controller()
        .list_volumes(ListVolumesRequest::default())
        .await);
    assert_eq!(list.entries.len(), callers() / 2);
}

#[tokio::test]
async fn many_volumes_are_mounted_at_once() {
    let agent = Arc::new(Agent::start().await);
    let calls: Vec<_> = (0..16)
        .map(|index| {
            let agent = Arc::clone(&agent);
            tokio::spawn(async move {
                let (name, plain) = (format!("v{index}"), mounted("ext4"));
                let id = volume(&agent, &name, 16, &plain).await;
                let at = mount(&agent, &name, &id, &plain).await;
                unmount(&agent, &id, &at).await;
                ok(agent.controller().delete_volume(delete(&id)).await);
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    let root = agent.scratch.path().to_string_lossy().into_owned();
    assert!(drumlin_tests::storage::attached_images_below(&root).is_empty());
}

#[tokio::test]
async fn a_caller_that_goes_away_stops_nothing_and_the_repeat_gets_its_result() {
    let agent = Agent::start().await;
    for round in 0..20 {
        let name = format!("v{round}");
        let mut controller = agent.controller();
        let request = create(&name, 64, &mounted("ext4"));
        let call = tokio::spawn(async move { controller.create_volume(request).await });
        tokio::time::sleep(Duration::from_micros(300 * round)).await;
        call.abort();
        let mut waited = 0;
        let id = loop {
            match agent
                .controller()
                .create_volume(create(&name, 64, &mounted("ext4")))
                .await
            {
                Ok(answer) => break answer.into_inner().volume.unwrap().volume_id,
                Err(status) => assert_eq!(status.code(), Code::Aborted, "{}", status.message()),
            }
            waited += 1;
            assert!(waited < 1000, "the key is never freed");
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        ok(agent.controller().delete_volume(delete(&id)).await);
    }
}
