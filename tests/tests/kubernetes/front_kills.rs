//! The front and the agent are killed between any two steps of each call: the repeat gets what an uninterrupted call gets,
//! and nothing is left.

use std::time::{Duration, Instant};

use drumlin_proto::csi::v1::{ControllerModifyVolumeRequest, Snapshot, VolumeGroupSnapshot};
use drumlin_tests::{
    agent::PATIENCE,
    requests::{
        create_group_snapshot, delete, delete_group_snapshot, delete_snapshot, expand, snapshot,
    },
};
use tonic::{Code, Request, Response, Status};

use crate::{
    front::{Asking, create_on, no_call_is_left, the_room_of_each_is_known},
    helpers::ok,
    node::holds,
    sidecars::{NODE, Stack},
};

/// The calls that change something, as their objects name them.
const CALLS: [&str; 8] = [
    "createVolume",
    "expandVolume",
    "modifyVolume",
    "createSnapshot",
    "createGroupSnapshot",
    "deleteGroupSnapshot",
    "deleteSnapshot",
    "deleteVolume",
];

/// A process that is killed at one step of each call.
struct Life {
    stack: Stack,
    /// The fail points that nobody has come to yet.
    armed: Vec<String>,
}

impl Life {
    /// The process of `part` runs with the fail points that are left.
    async fn arm(&mut self, part: &str) {
        let points = self.armed.join(",");
        if part == "front" {
            let front = self.stack.daemons.get_mut("controller").unwrap();
            front.restart_with("DRUMLIN_FAIL", &points);
        } else {
            let options = self.stack.agent.options().clone().killed_at(&points);
            self.stack.agent.kill();
            self.stack.agent.restart_with(options).await;
        }
    }

    fn has_died(&mut self, part: &str) -> bool {
        if part == "front" {
            let front = self.stack.daemons.get_mut("controller").unwrap();
            !front.is_running()
        } else {
            self.stack.agent.has_ended()
        }
    }

    /// Calls until there is an answer; the process is killed once meanwhile, and started again. Nothing is left of the call
    /// before the next one: a front that is killed before it has deleted an answered call leaves it until it is swept, which
    /// takes minutes.
    async fn killed_once<Q, A, F>(
        &mut self,
        (part, call, step): (&str, &str, &str),
        request: &Q,
        ask: impl Fn(Request<Q>) -> F,
    ) -> A
    where
        Q: Clone,
        A: Send + 'static,
        F: Future<Output = Result<Response<A>, Status>> + Send + 'static,
    {
        let point = format!("{part}.{call}.{step}");
        let begun = Instant::now();
        let mut answer = None;
        let mut asked = None;
        while answer.is_none() || self.armed.contains(&point) {
            assert!(
                begun.elapsed() < 2 * PATIENCE,
                "{point}: {:?}\n{}",
                answer.is_some(),
                self.stack.logs()
            );
            if asked.is_none() && answer.is_none() {
                let mut request = Request::new(request.clone());
                request.set_timeout(Duration::from_secs(30));
                asked = Some(tokio::spawn(ask(request)));
            }
            if self.has_died(part) {
                assert!(self.armed.contains(&point), "{point}: it was killed before");
                self.armed.retain(|other| *other != point);
                self.arm(part).await;
            }
            if let Some(task) = asked.take_if(|task| task.is_finished()) {
                match task.await.unwrap() {
                    Ok(given) => answer = Some(given.into_inner()),
                    Err(status) => {
                        let is_passing = [Code::Unavailable, Code::Aborted, Code::Unknown];
                        assert!(is_passing.contains(&status.code()), "{point}: {status:?}");
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        no_call_is_left(&self.stack).await;
        answer.unwrap()
    }

    async fn holds(&self) -> (usize, usize) {
        holds(&self.stack.agent).await
    }

    /// Everything is made and deleted again, and `part` is killed at `step` of each call.
    async fn through(&mut self, part: &str, step: &str) {
        self.armed = CALLS
            .iter()
            .map(|call| format!("{part}.{call}.{step}"))
            .collect();
        self.arm(part).await;
        let (id, one, moment) = self.all_made(part, step).await;
        self.all_deleted(part, step, (&id, &one, &moment)).await;
        assert_eq!(self.armed, Vec::<String>::new());
    }

    /// A volume that has grown, a snapshot of it and a group snapshot.
    async fn all_made(
        &mut self,
        part: &str,
        step: &str,
    ) -> (String, Snapshot, VolumeGroupSnapshot) {
        let asking = Asking::new(&self.stack);
        let (controller, groups) = (asking.controller(), asking.groups());
        let controller = || controller.clone();

        let wanted = create_on(&format!("{part} {step}"), 8, &[NODE]);
        let at = (part, "createVolume", step);
        let made = |request| {
            let mut controller = controller();
            async move { controller.create_volume(request).await }
        };
        let made = self.killed_once(at, &wanted, made).await;
        let id = made.volume.unwrap().volume_id;
        let again = ok(controller().create_volume(wanted).await);
        assert_eq!(again.volume.unwrap().volume_id, id);
        assert_eq!(self.holds().await, (1, 0), "{at:?}");

        let at = (part, "expandVolume", step);
        let grown = |request| {
            let mut controller = controller();
            async move { controller.controller_expand_volume(request).await }
        };
        let grown = self.killed_once(at, &expand(&id, 16), grown).await;
        assert_eq!(grown.capacity_bytes, 16 << 20);

        let at = (part, "modifyVolume", step);
        let modify = ControllerModifyVolumeRequest {
            volume_id: id.clone(),
            mutable_parameters: [("protected".to_owned(), "false".to_owned())].into(),
            ..ControllerModifyVolumeRequest::default()
        };
        let modified = |request| {
            let mut controller = controller();
            async move { controller.controller_modify_volume(request).await }
        };
        self.killed_once(at, &modify, modified).await;

        let at = (part, "createSnapshot", step);
        let taken = |request| {
            let mut controller = controller();
            async move { controller.create_snapshot(request).await }
        };
        let one = snapshot(&format!("one {part} {step}"), &id);
        let one = self.killed_once(at, &one, taken).await.snapshot.unwrap();
        assert_eq!(self.holds().await, (1, 1), "{at:?}");

        let at = (part, "createGroupSnapshot", step);
        let taken = |request| {
            let mut groups = groups.clone();
            async move { groups.create_volume_group_snapshot(request).await }
        };
        let moment = create_group_snapshot(&format!("moment {part} {step}"), vec![id.clone()]);
        let moment = self.killed_once(at, &moment, taken).await;
        let moment = moment.group_snapshot.unwrap();
        assert_eq!(moment.snapshots.len(), 1);
        assert_eq!(self.holds().await, (1, 2), "{at:?}");
        (id, one, moment)
    }

    async fn all_deleted(
        &mut self,
        part: &str,
        step: &str,
        (id, one, moment): (&str, &Snapshot, &VolumeGroupSnapshot),
    ) {
        let asking = Asking::new(&self.stack);
        let (controller, groups) = (asking.controller(), asking.groups());
        let controller = || controller.clone();

        let at = (part, "deleteGroupSnapshot", step);
        let deleted = |request| {
            let mut groups = groups.clone();
            async move { groups.delete_volume_group_snapshot(request).await }
        };
        self.killed_once(at, &delete_group_snapshot(moment), deleted)
            .await;
        assert_eq!(self.holds().await, (1, 1), "{at:?}");

        let at = (part, "deleteSnapshot", step);
        let deleted = |request| {
            let mut controller = controller();
            async move { controller.delete_snapshot(request).await }
        };
        self.killed_once(at, &delete_snapshot(&one.snapshot_id), deleted)
            .await;

        let at = (part, "deleteVolume", step);
        let deleted = |request| {
            let mut controller = controller();
            async move { controller.delete_volume(request).await }
        };
        self.killed_once(at, &delete(id), deleted).await;
        assert_eq!(self.holds().await, (0, 0), "{at:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_each_step_of_each_call_the_repeat_gets_what_was_made_and_nothing_is_left() {
    let mut stack = Stack::start().await;
    the_room_of_each_is_known(&stack, &Asking::new(&stack), &[NODE]).await;
    // They end when the front does.
    for sidecar in ["provisioner", "resizer", "snapshotter"] {
        stack.daemons.remove(sidecar);
    }
    let mut life = Life {
        stack,
        armed: Vec::new(),
    };
    for (part, step) in [
        ("front", "created"),
        ("front", "answered"),
        ("executor", "taken"),
        ("executor", "run"),
        ("executor", "told"),
    ] {
        life.through(part, step).await;
        // The other one is killed by nobody.
        life.arm(part).await;
    }
}
