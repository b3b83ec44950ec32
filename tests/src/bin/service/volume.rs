//! Volumes that are used through the service's socket.

use std::{
    fs,
    path::{Path, PathBuf},
};

use drumlin_proto::csi::v1::{
    CreateVolumeRequest, NodeGetVolumeStatsRequest, VolumeCapability,
    controller_client::ControllerClient, group_controller_client::GroupControllerClient,
    identity_client::IdentityClient, node_client::NodeClient, volume_usage::Unit,
};
use drumlin_tests::{
    requests::{MIB, create, delete, publish, stage, unpublish, unstage},
    sequence::{Place, RING},
};
use tonic::transport::Channel;

fn channel() -> Channel {
    drumlin_proto::connect(Path::new("/run/drumlin/csi.sock")).unwrap()
}

pub(crate) fn identity() -> IdentityClient<Channel> {
    IdentityClient::new(channel())
}

pub(crate) fn controller() -> ControllerClient<Channel> {
    ControllerClient::new(channel())
}

pub(crate) fn node() -> NodeClient<Channel> {
    NodeClient::new(channel())
}

pub(crate) fn groups() -> GroupControllerClient<Channel> {
    GroupControllerClient::new(channel())
}

/// Makes a volume of a class, and returns its id. A repeat finds it.
pub(crate) async fn make(
    class: &str,
    name: &str,
    mebibytes: i64,
    capability: &VolumeCapability,
) -> String {
    let request = CreateVolumeRequest {
        parameters: [("class".to_owned(), class.to_owned())].into(),
        ..create(name, mebibytes, capability)
    };
    let made = controller().create_volume(request).await.unwrap();
    made.into_inner().volume.unwrap().volume_id
}

/// Where the bytes of a volume (`v`) or snapshot (`s`) are.
pub(crate) fn device(group: &str, kind: char, id: &str) -> PathBuf {
    let key = id.rsplit('/').next().unwrap();
    PathBuf::from(format!("/dev/{group}/dl-{kind}-{key}"))
}

/// A volume that is published.
#[derive(Debug)]
pub(crate) struct Used {
    pub(crate) id: String,
    capability: VolumeCapability,
    staging: String,
    pub(crate) target: String,
}

impl Used {
    /// Stages and publishes a volume. A repeat finds it so.
    pub(crate) async fn new(id: &str, name: &str, capability: &VolumeCapability) -> Self {
        let used = Self {
            id: id.to_owned(),
            capability: capability.clone(),
            staging: format!("/var/lib/pods/staging/{name}"),
            target: format!("/var/lib/pods/targets/{name}"),
        };
        fs::create_dir_all(&used.staging).unwrap();
        fs::create_dir_all("/var/lib/pods/targets").unwrap();
        used.again().await;
        used
    }

    /// The same calls once more.
    pub(crate) async fn again(&self) {
        let request = stage(&self.id, &self.staging, &self.capability);
        node().node_stage_volume(request).await.unwrap();
        let paths = (self.staging.as_str(), self.target.as_str());
        let request = publish(&self.id, paths, &self.capability);
        node().node_publish_volume(request).await.unwrap();
    }

    /// A file in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.target).join(name)
    }

    /// A file of its own for a writer.
    pub(crate) fn place(&self) -> Place {
        let path = self.path("ring");
        fs::write(&path, vec![0; RING]).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        Place { path, offset: 0 }
    }

    /// How large its file system is, in mebibytes.
    pub(crate) async fn size(&self) -> i64 {
        let request = NodeGetVolumeStatsRequest {
            volume_id: self.id.clone(),
            volume_path: self.target.clone(),
            staging_target_path: String::new(),
        };
        let stats = node().node_get_volume_stats(request).await.unwrap();
        let usage = stats.into_inner().usage;
        let mut usage = usage.iter();
        let bytes = usage.find(|usage| usage.unit == i32::from(Unit::Bytes));
        bytes.unwrap().total / MIB
    }

    /// Its mounts: number, that of the one it is in, device, root and target of each.
    pub(crate) fn mounts(&self) -> Vec<String> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let lines = table
            .lines()
            .map(|line| line.split(' ').take(5).collect::<Vec<_>>());
        let ours = lines.filter(|line| line[4] == self.staging || line[4] == self.target);
        ours.map(|line| line.join(" ")).collect()
    }

    /// Unpublishes and unstages it.
    pub(crate) async fn leave(&self) {
        let request = unpublish(&self.id, &self.target);
        node().node_unpublish_volume(request).await.unwrap();
        let request = unstage(&self.id, &self.staging);
        node().node_unstage_volume(request).await.unwrap();
    }

    /// The same, and deletes it.
    pub(crate) async fn delete(self) {
        self.leave().await;
        controller().delete_volume(delete(&self.id)).await.unwrap();
    }
}
