//! The advertised capabilities: exactly those that are implemented.

use drumlin_core::ops::Settings;
use drumlin_proto::csi::v0_1::{
    ControllerServiceCapability,
    controller_service_capability::{self, rpc::Type as Controller},
};

/// Capabilities of the controller; publishing is advertised when the settings say `attach`.
pub(super) fn controller(settings: &Settings) -> Vec<ControllerServiceCapability> {
    let always = [
        Controller::CreateDeleteVolume,
        Controller::ListVolumes,
        Controller::GetCapacity,
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
