//! The calls that a [`NodeCall`](crate::NodeCall) can carry.

use std::fmt;

use drumlin_crd::names;
use drumlin_reconciler::Hooks;
use prost_reflect::MethodDescriptor;
use sha2::{Digest, Sha256};

use crate::proto_json;

/// What a call does on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It changes something: the agent records that it has begun before it runs.
    Changes,
    /// It changes nothing.
    Reads,
}

/// A call that a node's agent runs for the cluster.
#[derive(PartialEq, Eq)]
pub struct Method {
    /// The member of spec and status that carries its request and response.
    pub member: &'static str,
    /// Its service, such as `csi.v1.Controller`.
    pub service: &'static str,
    /// Its name there.
    pub rpc: &'static str,
    /// What it does.
    pub effect: Effect,
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.member)
    }
}

const CONTROLLER: &str = "csi.v1.Controller";
const GROUP_CONTROLLER: &str = "csi.v1.GroupController";
const INVENTORY: &str = "drumlin.v1.Inventory";

macro_rules! methods {
    ($($(#[$doc:meta])+ $name:ident = $member:literal: $service:expr, $rpc:literal, $effect:ident;)+) => {
        $(
            $(#[$doc])+
            pub(crate) static $name: Method = Method {
                member: $member,
                service: $service,
                rpc: $rpc,
                effect: Effect::$effect,
            };
        )+
        /// All of them.
        pub static METHODS: &[&Method] = &[$(&$name),+];
    };
}

methods! {
    /// `CreateVolume`.
    CREATE_VOLUME = "createVolume": CONTROLLER, "CreateVolume", Changes;
    /// `DeleteVolume`.
    DELETE_VOLUME = "deleteVolume": CONTROLLER, "DeleteVolume", Changes;
    /// `ControllerExpandVolume`.
    EXPAND_VOLUME = "expandVolume": CONTROLLER, "ControllerExpandVolume", Changes;
    /// `ControllerModifyVolume`.
    MODIFY_VOLUME = "modifyVolume": CONTROLLER, "ControllerModifyVolume", Changes;
    /// `ValidateVolumeCapabilities`.
    VALIDATE_VOLUME = "validateVolume": CONTROLLER, "ValidateVolumeCapabilities", Reads;
    /// `CreateSnapshot`.
    CREATE_SNAPSHOT = "createSnapshot": CONTROLLER, "CreateSnapshot", Changes;
    /// `DeleteSnapshot`.
    DELETE_SNAPSHOT = "deleteSnapshot": CONTROLLER, "DeleteSnapshot", Changes;
    /// `ListSnapshots`.
    LIST_SNAPSHOTS = "listSnapshots": CONTROLLER, "ListSnapshots", Reads;
    /// `CreateVolumeGroupSnapshot`.
    CREATE_GROUP_SNAPSHOT = "createGroupSnapshot": GROUP_CONTROLLER, "CreateVolumeGroupSnapshot", Changes;
    /// `DeleteVolumeGroupSnapshot`.
    DELETE_GROUP_SNAPSHOT = "deleteGroupSnapshot": GROUP_CONTROLLER, "DeleteVolumeGroupSnapshot", Changes;
    /// `GetVolumeGroupSnapshot`.
    GET_GROUP_SNAPSHOT = "getGroupSnapshot": GROUP_CONTROLLER, "GetVolumeGroupSnapshot", Reads;
    /// `ListObjects` of our own inventory, for the audit.
    LIST_OBJECTS = "listObjects": INVENTORY, "ListObjects", Reads;
    /// `DeleteBlankVolume` of our own inventory, for the audit.
    DELETE_BLANK_VOLUME = "deleteBlankVolume": INVENTORY, "DeleteBlankVolume", Changes;
}

impl Method {
    /// Its descriptor.
    pub(crate) fn descriptor(&self) -> Option<MethodDescriptor> {
        proto_json::method(self.service, self.rpc)
    }

    /// Comes to the fail point `<part>.<member>.<step>`; a release build does not even put its name together.
    pub(crate) fn fail(&self, hooks: Hooks, part: &str, step: &str) {
        if cfg!(debug_assertions) {
            (hooks.fail)(&format!("{part}.{}.{step}", self.member));
        }
    }

    /// The name of the call about `key`: two calls of one name are never open at the same time, in the whole cluster. A key
    /// is the name of what is created, or the id of what is changed.
    pub(crate) fn call_name(&self, key: &str) -> String {
        let mut name = String::new();
        for letter in self.member.chars() {
            if letter.is_ascii_uppercase() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        format!("{name}-{}", names::shortened(&Sha256::digest(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_on_the_wire_and_has_a_name_of_its_own() {
        let mut names = std::collections::BTreeSet::new();
        for method in METHODS {
            let found = method.descriptor();
            assert!(found.is_some(), "{method:?}");
            assert!(names.insert(method.call_name("x")), "{method:?}");
        }
    }

    #[test]
    fn a_call_is_named_by_its_method_and_its_key() {
        let name = CREATE_VOLUME.call_name("pvc-1");
        assert!(names::is_label(&name), "{name}");
        assert!(name.starts_with("create-volume-"), "{name}");
        assert_eq!(name, CREATE_VOLUME.call_name("pvc-1"));
        assert_ne!(name, CREATE_VOLUME.call_name("pvc-2"));
    }
}
