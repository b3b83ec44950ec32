//! The compiled descriptors against a table of the wire's facts.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

use std::collections::BTreeSet;

use drumlin_proto::FILE_DESCRIPTOR_SET;
use prost_reflect::{
    DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor,
    ServiceDescriptor, Value,
};

/// The packages and their tables.
const PACKAGES: [(&str, &str); 8] = [
    ("csi", include_str!("wire/csi.txt")),
    ("csi.v0", include_str!("wire/csi.v0.txt")),
    ("identity", include_str!("wire/identity.txt")),
    (
        "pluginregistration",
        include_str!("wire/pluginregistration.txt"),
    ),
    ("reclaimspace", include_str!("wire/reclaimspace.txt")),
    ("csi.v1", include_str!("wire/csi.v1.txt")),
    ("drumlin.v1", include_str!("wire/drumlin.v1.txt")),
    ("volumegroup", include_str!("wire/volumegroup.txt")),
];

#[test]
fn every_name_and_number_is_the_one_on_the_wire() {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
    for (package, table) in PACKAGES {
        let wanted = table_facts(table);
        let found = package_facts(&pool, package);
        let missing: Vec<_> = wanted.difference(&found).collect();
        let unknown: Vec<_> = found.difference(&wanted).collect();
        assert!(
            missing.is_empty() && unknown.is_empty(),
            "{package}\nmissing: {missing:#?}\nnot in the table: {unknown:#?}"
        );
    }
}

#[test]
fn every_package_but_the_well_known_ones_has_a_table() {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
    let described: BTreeSet<_> = pool
        .files()
        .map(|file| file.package_name().to_owned())
        .collect();
    let mut tables: BTreeSet<_> = PACKAGES
        .iter()
        .map(|(package, _)| (*package).to_owned())
        .collect();
    tables.insert("google.protobuf".into());
    assert_eq!(described, tables);
}

#[test]
fn the_annotations_have_the_numbers_of_the_specification() {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
    let found: BTreeSet<_> = pool
        .all_extensions()
        .map(|extension| {
            format!(
                "{} {} {}",
                extension.containing_message().name(),
                extension.name(),
                extension.number()
            )
        })
        .collect();
    let wanted = [
        "EnumOptions alpha_enum 1060",
        "EnumValueOptions alpha_enum_value 1060",
        "FieldOptions alpha_field 1060",
        "FieldOptions csi_secret 1059",
        "MessageOptions alpha_message 1060",
        "MethodOptions alpha_method 1060",
        "ServiceOptions alpha_service 1060",
    ];
    assert_eq!(found, wanted.map(String::from).into());
}

/// The table's lines, each with the head of its block.
fn table_facts(table: &str) -> BTreeSet<String> {
    let mut head = "";
    let mut facts = BTreeSet::new();
    for line in table
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let new = if let Some(fact) = line.strip_prefix("  ") {
            facts.insert(format!("{}: {fact}", head.trim_end_matches(" alpha")))
        } else {
            head = line;
            facts.insert(line.to_owned())
        };
        assert!(new, "{line:?} is there twice");
    }
    facts
}

/// The same lines from the descriptors.
fn package_facts(pool: &DescriptorPool, package: &str) -> BTreeSet<String> {
    let mut facts = BTreeSet::new();
    for service in pool
        .services()
        .filter(|found| found.package_name() == package)
    {
        service_facts(&mut facts, &service);
    }
    for message in pool
        .all_messages()
        .filter(|found| found.package_name() == package && !found.is_map_entry())
    {
        message_facts(&mut facts, &message);
    }
    for found in pool
        .all_enums()
        .filter(|found| found.package_name() == package)
    {
        enum_facts(&mut facts, &found);
    }
    facts
}

fn service_facts(facts: &mut BTreeSet<String>, service: &ServiceDescriptor) {
    let head = format!("service {}", service.name());
    for method in service.methods() {
        let stream = if method.is_server_streaming() {
            "stream "
        } else {
            ""
        };
        assert!(
            !method.is_client_streaming(),
            "{} takes a stream",
            method.full_name()
        );
        facts.insert(format!(
            "{head}: {} {} -> {stream}{}{}",
            method.name(),
            method.input().name(),
            method.output().name(),
            marks(&method.options())
        ));
    }
    facts.insert(head + &marks(&service.options()));
}

fn message_facts(facts: &mut BTreeSet<String>, message: &MessageDescriptor) {
    let head = format!(
        "message {}",
        local(message.full_name(), message.package_name())
    );
    for field in message.fields() {
        let oneof = field
            .containing_oneof()
            .map(|oneof| format!(" in {}", oneof.name()));
        facts.insert(format!(
            "{head}: {} {} {}{}{}",
            field.number(),
            field.name(),
            type_of(&field),
            oneof.unwrap_or_default(),
            marks(&field.options())
        ));
    }
    facts.insert(head + &marks(&message.options()));
}

fn enum_facts(facts: &mut BTreeSet<String>, found: &EnumDescriptor) {
    let head = format!("enum {}", local(found.full_name(), found.package_name()));
    for value in found.values() {
        facts.insert(format!(
            "{head}: {} {}{}",
            value.number(),
            value.name(),
            marks(&value.options())
        ));
    }
    facts.insert(head + &marks(&found.options()));
}

fn type_of(field: &FieldDescriptor) -> String {
    let package = field.parent_file().package_name().to_owned();
    match field.kind() {
        Kind::Message(entry) if field.is_map() => {
            format!(
                "map<{},{}>",
                type_of(&entry.map_entry_key_field()),
                type_of(&entry.map_entry_value_field())
            )
        }
        kind => {
            let name = match &kind {
                Kind::Message(message) => local(message.full_name(), &package),
                Kind::Enum(found) => local(found.full_name(), &package),
                scalar => format!("{scalar:?}").to_lowercase(),
            };
            if field.is_list() {
                format!("repeated {name}")
            } else {
                name
            }
        }
    }
}

/// A name without its package.
fn local(name: &str, package: &str) -> String {
    let rest = name
        .strip_prefix(package)
        .and_then(|rest| rest.strip_prefix('.'));
    rest.unwrap_or(name).to_owned()
}

/// The words for the annotations that are set.
fn marks(options: &DynamicMessage) -> String {
    let set: BTreeSet<_> = options
        .extensions()
        .filter(|(_, value)| **value == Value::Bool(true))
        .map(|(extension, _)| {
            if extension.number() == 1059 {
                " secret"
            } else {
                " alpha"
            }
        })
        .collect();
    set.into_iter().rev().collect()
}
