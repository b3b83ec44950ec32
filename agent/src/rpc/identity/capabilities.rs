//! The advertised capabilities: those that are implemented, and the applicable rules.

use drumlin_core::ops::OnGroupDelete;
use drumlin_proto::identity::{
    Capability,
    capability::{
        ReclaimSpace, Service, Type, VolumeGroup, reclaim_space::Type as Reclaim,
        service::Type as Services, volume_group::Type as Groups,
    },
};

/// Capabilities of a driver with this setting for the members of a deleted group.
pub(super) fn all(policy: OnGroupDelete) -> Vec<Capability> {
    let service = |service: Services| {
        Type::Service(Service {
            r#type: service.into(),
        })
    };
    let reclaim = |when: Reclaim| {
        Type::ReclaimSpace(ReclaimSpace {
            r#type: when.into(),
        })
    };
    let group = |what: Groups| {
        Type::VolumeGroup(VolumeGroup {
            r#type: what.into(),
        })
    };
    let keeps_volumes = policy != OnGroupDelete::Cascade;
    [
        service(Services::ControllerService),
        service(Services::NodeService),
        reclaim(Reclaim::Offline),
        reclaim(Reclaim::Online),
        group(Groups::VolumeGroup),
        group(Groups::LimitVolumeToOneVolumeGroup),
        group(Groups::ModifyVolumeGroup),
        group(Groups::GetVolumeGroup),
        group(Groups::ListVolumeGroups),
    ]
    .into_iter()
    .chain(keeps_volumes.then(|| group(Groups::DoNotAllowVgToDeleteVolumes)))
    .map(|capability| Capability {
        r#type: Some(capability),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_volumes_outlive_their_group_is_said_where_it_is_so() {
        let says = |policy| {
            all(policy).iter().any(|capability| {
                let rule = VolumeGroup {
                    r#type: Groups::DoNotAllowVgToDeleteVolumes.into(),
                };
                capability.r#type == Some(Type::VolumeGroup(rule))
            })
        };
        assert!(says(OnGroupDelete::Unlink) && says(OnGroupDelete::Refuse));
        assert!(!says(OnGroupDelete::Cascade));
    }
}
