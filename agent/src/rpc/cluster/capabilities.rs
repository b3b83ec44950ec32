//! What the front of a cluster can do: what the sidecars need, and what one answer from memory or from one node can give.

use drumlin_proto::csi::v1::{
    ControllerServiceCapability, PluginCapability,
    controller_service_capability::rpc::Type as Controller,
    plugin_capability::service::Type as Service,
};

use crate::rpc::csi_v1::capabilities::{controller_with, plugin_with};

/// Capabilities of the plugin.
pub(super) fn plugin() -> Vec<PluginCapability> {
    plugin_with(&[
        Service::ControllerService,
        Service::GroupControllerService,
        Service::VolumeAccessibilityConstraints,
    ])
}

/// Capabilities of the controller.
pub(super) fn controller() -> Vec<ControllerServiceCapability> {
    controller_with([
        Controller::CreateDeleteVolume,
        Controller::GetCapacity,
        Controller::CreateDeleteSnapshot,
        Controller::ListSnapshots,
        Controller::CloneVolume,
        Controller::ExpandVolume,
        Controller::SingleNodeMultiWriter,
        Controller::ModifyVolume,
    ])
}
