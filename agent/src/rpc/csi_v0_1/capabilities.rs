//! The advertised capabilities: exactly those that are implemented.

use drumlin_proto::csi::v0_1::{
    ControllerServiceCapability,
    controller_service_capability::{self, rpc::Type as Controller},
};

/// Capabilities of the controller; publishing is advertised when `attach` is set.
pub(super) fn controller(attach: bool) -> Vec<ControllerServiceCapability> {
    let always = [
        Controller::CreateDeleteVolume,
        Controller::ListVolumes,
        Controller::GetCapacity,
    ];
    let publishing = attach.then_some(Controller::PublishUnpublishVolume);
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
