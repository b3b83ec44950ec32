//! The lives of volumes that interruptions are tried on: calls one after the other, and the states behind them.

use drumlin_proto::{
    csi::v1::{
        ControllerModifyVolumeRequest, ControllerPublishVolumeRequest, CreateVolumeRequest,
        GetMetadataAllocatedRequest, NodePublishVolumeRequest, VolumeCapability,
        snapshot_metadata_client::SnapshotMetadataClient, volume_capability::access_mode::Mode,
    },
    drumlin::v1::{ObjectKind, SetOwnerRequest},
};
use drumlin_tests::{
    agent::{Agent, is_over_lvm},
    requests::{
        create, create_group, create_group_snapshot, delete, delete_group, delete_group_snapshot,
        delete_snapshot, expand, for_mode, from_snapshot, from_volume, node_expand, publish, raw,
        set_members, snapshot, stage, unpublish, unstage,
    },
    state::State,
};
use tonic::{Response, Status};

use crate::{
    helpers::{detach, paths},
    subject::Subject,
};

/// The name of a step, and the state after it.
pub(crate) type Seen = (String, State);

/// Everything that changes something, once; the state after each call.
pub(crate) async fn life(
    subject: &mut Subject,
    capability: &VolumeCapability,
    mebibytes: i64,
) -> Vec<Seen> {
    let (staging, target) = paths(&subject.agent, "v");
    let read_only_target = format!("{target}-ro");
    // It has two targets for a while.
    let capability = &for_mode(capability, Mode::SingleNodeMultiWriter);
    let mut life = Life::of(subject, capability);
    life.is_each_seen = true;
    let new = create("v", mebibytes, capability);
    let id = life.create("create", &new).await;
    life.attach("attach", &id).await;
    life.stage("stage", &id, &staging).await;
    let read_write = publish(&id, (&staging, &target), capability);
    life.publish("publish", &read_write).await;
    let read_only = NodePublishVolumeRequest {
        readonly: true,
        ..publish(&id, (&staging, &read_only_target), capability)
    };
    life.publish("publish read-only", &read_only).await;
    let taken = life.snapshot(&id).await;
    life.read_changed_blocks(&taken).await;
    life.set_owner(ObjectKind::Volume, &id).await;
    life.set_owner(ObjectKind::Snapshot, &taken).await;
    let restored = life.restore("restored", mebibytes * 2, &taken).await;
    let cloned = life.clone_of("cloned", mebibytes * 2, &id).await;
    let lists = [vec![id.clone(), restored.clone()], vec![cloned.clone()]];
    let group = life.group(&id, lists).await;
    let (other_staging, _) = paths(&life.subject.agent, "restored");
    life.attach("attach the restored", &restored).await;
    life.stage("stage the restored", &restored, &other_staging)
        .await;
    life.unstage("unstage the restored", &restored, &other_staging)
        .await;
    life.detach("detach the restored", &restored).await;
    // A thick volume that is used cannot grow while it has snapshots.
    life.delete_snapshot(taken).await;
    // What a raw user of an image writes nobody can hold.
    let is_held = is_over_lvm() || capability.access_type != raw().access_type;
    let member = if is_held { &id } else { &cloned };
    life.group_snapshot([member.clone(), restored.clone()])
        .await;
    life.expand(&id, mebibytes + 32).await;
    life.expand_at_node(&id, &target).await;
    life.modify(&id).await;
    life.unpublish("unpublish read-only", &id, &read_only_target)
        .await;
    life.unpublish("unpublish", &id, &target).await;
    life.unstage("unstage", &id, &staging).await;
    life.detach("detach", &id).await;
    // What becomes of the members of a group is a setting of the agent's: here they go with it.
    life.delete_group(group).await;
    for id in [&id, &restored] {
        life.delete(id).await;
    }
    life.states
}

/// The life of a small volume, quick enough to be lived two hundred times; the state at some of its steps.
pub(crate) async fn short_life(subject: &mut Subject, capability: &VolumeCapability) -> Vec<Seen> {
    let (staging, target) = paths(&subject.agent, "v");
    let mut life = Life::of(subject, capability);
    let id = life.create("create", &create("v", 16, capability)).await;
    life.attach("attach", &id).await;
    life.stage("stage", &id, &staging).await;
    let read_write = publish(&id, (&staging, &target), capability);
    life.publish("publish", &read_write).await;
    let taken = life.snapshot(&id).await;
    let restored = life.restore("r", 32, &taken).await;
    life.delete_snapshot(taken).await;
    life.expand(&id, 24).await;
    life.look("expand").await;
    life.unpublish("unpublish", &id, &target).await;
    life.unstage("unstage", &id, &staging).await;
    life.detach("detach", &id).await;
    life.delete(&id).await;
    life.look("delete").await;
    life.delete(&restored).await;
    life.look("end").await;
    life.states
}

/// A life that is being lived, with volumes of one kind.
struct Life<'a> {
    subject: &'a mut Subject,
    capability: &'a VolumeCapability,
    /// Whether the state is seen after each call.
    is_each_seen: bool,
    states: Vec<Seen>,
}

impl<'a> Life<'a> {
    fn of(subject: &'a mut Subject, capability: &'a VolumeCapability) -> Self {
        Self {
            subject,
            capability,
            is_each_seen: false,
            states: Vec::new(),
        }
    }

    async fn look(&mut self, step: &str) {
        let state = self.subject.state().await;
        self.states.push((step.to_owned(), state));
    }

    async fn call<T>(
        &mut self,
        step: &str,
        call: impl AsyncFn(&Agent) -> Result<Response<T>, Status>,
    ) -> T {
        let answer = self.subject.call(step, call).await;
        if self.is_each_seen {
            self.look(step).await;
        }
        answer
    }

    async fn create(&mut self, step: &str, request: &CreateVolumeRequest) -> String {
        let made = self.call(step, async |agent: &Agent| {
            agent.controller().create_volume(request.clone()).await
        });
        made.await.volume.unwrap().volume_id
    }

    async fn read_changed_blocks(&mut self, snapshot_id: &str) {
        let request = GetMetadataAllocatedRequest {
            snapshot_id: snapshot_id.to_owned(),
            ..GetMetadataAllocatedRequest::default()
        };
        self.call("read the changed blocks", async |agent: &Agent| {
            let mut client = SnapshotMetadataClient::new(agent.channel());
            let mut stream = client.get_metadata_allocated(request.clone()).await?;
            while stream.get_mut().message().await?.is_some() {}
            Ok(Response::new(()))
        })
        .await;
    }

    async fn restore(&mut self, name: &str, mebibytes: i64, snapshot_id: &str) -> String {
        let request = CreateVolumeRequest {
            volume_content_source: from_snapshot(snapshot_id),
            ..create(name, mebibytes, self.capability)
        };
        self.create("restore", &request).await
    }

    async fn clone_of(&mut self, name: &str, mebibytes: i64, id: &str) -> String {
        let request = CreateVolumeRequest {
            volume_content_source: from_volume(id),
            ..create(name, mebibytes, self.capability)
        };
        self.create("clone", &request).await
    }

    async fn delete(&mut self, id: &str) {
        self.call("delete", async |agent: &Agent| {
            agent.controller().delete_volume(delete(id)).await
        })
        .await;
    }

    async fn attach(&mut self, step: &str, id: &str) {
        let request = ControllerPublishVolumeRequest {
            volume_id: id.to_owned(),
            node_id: "node-a".to_owned(),
            volume_capability: Some(self.capability.clone()),
            ..ControllerPublishVolumeRequest::default()
        };
        self.call(step, async |agent: &Agent| {
            let mut controller = agent.controller();
            controller.controller_publish_volume(request.clone()).await
        })
        .await;
    }

    async fn detach(&mut self, step: &str, id: &str) {
        self.call(step, async |agent: &Agent| {
            let mut controller = agent.controller();
            controller.controller_unpublish_volume(detach(id)).await
        })
        .await;
    }

    async fn stage(&mut self, step: &str, id: &str, staging: &str) {
        let request = stage(id, staging, self.capability);
        self.call(step, async |agent: &Agent| {
            agent.node().node_stage_volume(request.clone()).await
        })
        .await;
    }

    async fn unstage(&mut self, step: &str, id: &str, staging: &str) {
        self.call(step, async |agent: &Agent| {
            agent.node().node_unstage_volume(unstage(id, staging)).await
        })
        .await;
    }

    async fn publish(&mut self, step: &str, request: &NodePublishVolumeRequest) {
        self.call(step, async |agent: &Agent| {
            agent.node().node_publish_volume(request.clone()).await
        })
        .await;
    }

    async fn unpublish(&mut self, step: &str, id: &str, target: &str) {
        let request = unpublish(id, target);
        self.call(step, async |agent: &Agent| {
            agent.node().node_unpublish_volume(request.clone()).await
        })
        .await;
    }

    async fn snapshot(&mut self, id: &str) -> String {
        let taken = self.call("snapshot", async |agent: &Agent| {
            agent.controller().create_snapshot(snapshot("s", id)).await
        });
        taken.await.snapshot.unwrap().snapshot_id
    }

    async fn delete_snapshot(&mut self, snapshot_id: String) {
        let request = delete_snapshot(&snapshot_id);
        self.call("delete the snapshot", async |agent: &Agent| {
            agent.controller().delete_snapshot(request.clone()).await
        })
        .await;
    }

    async fn set_owner(&mut self, kind: ObjectKind, object_id: &str) {
        let request = SetOwnerRequest {
            kind: kind.into(),
            object_id: object_id.to_owned(),
            owner: [("drumlin.dev/name".to_owned(), "data".to_owned())].into(),
        };
        self.call("set the owner", async |agent: &Agent| {
            agent.inventory().set_owner(request.clone()).await
        })
        .await;
    }

    /// A group of one volume, which then has the members of each list.
    async fn group(&mut self, id: &str, lists: [Vec<String>; 2]) -> String {
        let request = create_group("g", vec![id.to_owned()]);
        let made = self.call("group", async |agent: &Agent| {
            agent.groups().create_volume_group(request.clone()).await
        });
        let group = made.await.volume_group.unwrap().volume_group_id;
        for volume_ids in lists {
            let request = set_members(&group, volume_ids);
            self.call("regroup", async |agent: &Agent| {
                let mut groups = agent.groups();
                groups.modify_volume_group_membership(request.clone()).await
            })
            .await;
        }
        group
    }

    async fn delete_group(&mut self, volume_group_id: String) {
        let request = delete_group(&volume_group_id);
        self.call("delete the group", async |agent: &Agent| {
            agent.groups().delete_volume_group(request.clone()).await
        })
        .await;
    }

    /// A group snapshot, and its end.
    async fn group_snapshot(&mut self, members: [String; 2]) {
        let request = create_group_snapshot("together", members.into());
        let taken = self.call("snapshot together", async |agent: &Agent| {
            let mut groups = agent.group_controller();
            groups.create_volume_group_snapshot(request.clone()).await
        });
        let taken = taken.await.group_snapshot.unwrap();
        let request = delete_group_snapshot(&taken);
        self.call("delete the group snapshot", async |agent: &Agent| {
            let mut groups = agent.group_controller();
            groups.delete_volume_group_snapshot(request.clone()).await
        })
        .await;
    }

    async fn expand(&mut self, id: &str, mebibytes: i64) {
        let request = expand(id, mebibytes);
        self.call("expand", async |agent: &Agent| {
            let mut controller = agent.controller();
            controller.controller_expand_volume(request.clone()).await
        })
        .await;
    }

    async fn expand_at_node(&mut self, id: &str, target: &str) {
        let request = node_expand(id, target);
        self.call("expand at the node", async |agent: &Agent| {
            agent.node().node_expand_volume(request.clone()).await
        })
        .await;
    }

    async fn modify(&mut self, id: &str) {
        let request = ControllerModifyVolumeRequest {
            volume_id: id.to_owned(),
            mutable_parameters: [("label.tier".to_owned(), "gold".to_owned())].into(),
            ..ControllerModifyVolumeRequest::default()
        };
        self.call("modify", async |agent: &Agent| {
            let mut controller = agent.controller();
            controller.controller_modify_volume(request.clone()).await
        })
        .await;
    }
}
