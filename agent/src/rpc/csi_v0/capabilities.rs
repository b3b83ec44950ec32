//! The advertised capabilities: exactly those that are implemented.

use drumlin_core::ops::Settings;
use drumlin_proto::csi::v0::{
    ControllerServiceCapability, NodeServiceCapability, PluginCapability,
    controller_service_capability::{self, rpc::Type as Controller},
    node_service_capability::{self, rpc::Type as Node},
    plugin_capability::{self, service::Type as Service},
};

/// Capabilities of the plugin.
pub(super) fn plugin() -> Vec<PluginCapability> {
    [
        Service::ControllerService,
        Service::AccessibilityConstraints,
    ]
    .into_iter()
    .map(|service| PluginCapability {
        r#type: Some(plugin_capability::Type::Service(
            plugin_capability::Service {
                r#type: service.into(),
            },
        )),
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
    ];
    let publishing = settings
        .attach
        .then_some(Controller::PublishUnpublishVolume);
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

/// Capabilities of the node.
pub(super) fn node() -> Vec<NodeServiceCapability> {
    vec![NodeServiceCapability {
        r#type: Some(node_service_capability::Type::Rpc(
            node_service_capability::Rpc {
                r#type: Node::StageUnstageVolume.into(),
            },
        )),
    }]
}
