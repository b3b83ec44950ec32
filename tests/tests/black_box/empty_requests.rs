//! Requests without any field, to every method of CSI and of groups.

use prost::Message;
use tonic::{Request, Status, client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel};
use tonic_prost::ProstCodec;

/// The calls whose requests have no required field.
pub(crate) const ASK_FOR_NOTHING: [&str; 24] = [
    "csi.Identity/GetSupportedVersions",
    "csi.v0.Controller/ControllerGetCapabilities",
    "csi.v0.Controller/GetCapacity",
    "csi.v0.Controller/ListSnapshots",
    "csi.v0.Controller/ListVolumes",
    "csi.v0.Identity/GetPluginCapabilities",
    "csi.v0.Identity/GetPluginInfo",
    "csi.v0.Identity/Probe",
    "csi.v0.Node/NodeGetCapabilities",
    "csi.v0.Node/NodeGetId",
    "csi.v0.Node/NodeGetInfo",
    "csi.v1.Controller/ControllerGetCapabilities",
    "csi.v1.Controller/ControllerListVolumeHealth",
    "csi.v1.Controller/GetCapacity",
    "csi.v1.Controller/ListSnapshots",
    "csi.v1.Controller/ListVolumes",
    "csi.v1.GroupController/GroupControllerGetCapabilities",
    "csi.v1.Identity/GetPluginCapabilities",
    "csi.v1.Identity/GetPluginInfo",
    "csi.v1.Identity/Probe",
    "csi.v1.Node/NodeGetCapabilities",
    "csi.v1.Node/NodeGetInfo",
    "csi.v1.Node/NodeGetStorageHealth",
    "volumegroup.Controller/ListVolumeGroups",
];

/// Sends a request without any field, which every call but those that ask for nothing refuses.
pub(crate) async fn empty(channel: &Channel, method: &str) -> Result<(), Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path: PathAndQuery = format!("/{method}").parse().unwrap();
    let codec = ProstCodec::<(), ()>::default();
    let answer = client.unary(Request::new(()), path, codec).await;
    answer.map(drop)
}

/// Every method of these packages that reflection describes, and the calls of the texts are among them.
pub(crate) fn methods() -> Vec<String> {
    let described = prost_types::FileDescriptorSet::decode(drumlin_proto::FILE_DESCRIPTOR_SET);
    let mut methods = Vec::new();
    for file in described.unwrap().file {
        if !["csi", "csi.v0", "csi.v1", "volumegroup"].contains(&file.package()) {
            continue;
        }
        for service in &file.service {
            let name = format!("{}.{}", file.package(), service.name());
            methods.extend(
                service
                    .method
                    .iter()
                    .map(|method| format!("{name}/{}", method.name())),
            );
        }
    }
    methods
}
