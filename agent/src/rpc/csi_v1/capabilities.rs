//! The advertised capabilities: exactly those that are implemented.

use drumlin_core::ops::Settings;
use drumlin_proto::csi::v1::{
    ControllerServiceCapability, GroupControllerServiceCapability, NodeServiceCapability,
    PluginCapability,
    controller_service_capability::{self, rpc::Type as Controller},
    group_controller_service_capability::{self, rpc::Type as Group},
    node_service_capability::{self, rpc::Type as Node},
    plugin_capability::{self, service::Type as Service, volume_expansion::Type as Expansion},
};

/// Capabilities of the plugin.
pub(super) fn plugin() -> Vec<PluginCapability> {
    plugin_with(&[
        Service::ControllerService,
        Service::GroupControllerService,
        Service::VolumeAccessibilityConstraints,
        Service::SnapshotAccessibilityConstraints,
        Service::SnapshotMetadataService,
    ])
}

/// Capabilities of a plugin with these services and online volume expansion.
pub(in crate::rpc) fn plugin_with(services: &[Service]) -> Vec<PluginCapability> {
    let services = services.iter().map(|service| {
        plugin_capability::Type::Service(plugin_capability::Service {
            r#type: (*service).into(),
        })
    });
    let expansion = plugin_capability::Type::VolumeExpansion(plugin_capability::VolumeExpansion {
        r#type: Expansion::Online.into(),
    });
    services
        .chain([expansion])
        .map(|capability| PluginCapability {
            r#type: Some(capability),
        })
        .collect()
}

/// Capabilities of the controller; publishing is advertised when the settings say `attach`.
pub(super) fn controller(settings: &Settings) -> Vec<ControllerServiceCapability> {
    let always = [
        Controller::CreateDeleteVolume,
        Controller::ListVolumes,
        Controller::GetCapacity,
        Controller::CreateDeleteSnapshot,
        Controller::ListSnapshots,
        Controller::CloneVolume,
        Controller::ExpandVolume,
        Controller::VolumeCondition,
        Controller::GetVolume,
        Controller::SingleNodeMultiWriter,
        Controller::ModifyVolume,
        Controller::GetSnapshot,
        Controller::GetVolumeHealth,
        Controller::ListVolumeHealth,
    ];
    let publishing = [
        Controller::PublishUnpublishVolume,
        Controller::PublishReadonly,
        Controller::ListVolumesPublishedNodes,
    ];
    let publishing = publishing.into_iter().filter(|_| settings.attach);
    always
        .into_iter()
        .chain(publishing)
        .map(|capability| ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(
                controller_service_capability::Rpc {
                    r#type: capability.into(),
                },
            )),
        })
        .collect()
}

/// Capabilities of the group controller.
pub(super) fn group_controller() -> Vec<GroupControllerServiceCapability> {
    let all = [Group::CreateDeleteGetVolumeGroupSnapshot];
    all.into_iter()
        .map(|capability| GroupControllerServiceCapability {
            r#type: Some(group_controller_service_capability::Type::Rpc(
                group_controller_service_capability::Rpc {
                    r#type: capability.into(),
                },
            )),
        })
        .collect()
}

/// Capabilities of the node; that of groups is advertised when the settings say `mount_group`.
pub(super) fn node(settings: &Settings) -> Vec<NodeServiceCapability> {
    let mut capabilities = vec![
        Node::StageUnstageVolume,
        Node::GetVolumeStats,
        Node::ExpandVolume,
        Node::VolumeCondition,
        Node::SingleNodeMultiWriter,
        Node::GetVolumeHealth,
        Node::GetStorageHealth,
    ];
    if settings.mount_group {
        capabilities.push(Node::VolumeMountGroup);
    }
    node_with(&capabilities)
}

/// These capabilities of a node.
pub(in crate::rpc) fn node_with(capabilities: &[Node]) -> Vec<NodeServiceCapability> {
    let capabilities = capabilities.iter();
    capabilities
        .map(|capability| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(
                node_service_capability::Rpc {
                    r#type: (*capability).into(),
                },
            )),
        })
        .collect()
}
