//! What belongs to an object, as a tree: a group, its volumes and group snapshots, their snapshots and the volumes made
//! from those.

use std::{collections::HashSet, fmt::Write};

use drumlin_crd::ObjectKey;

use crate::record::{Body, Of, Record};

/// The tree that an object is in; it is marked itself.
pub(super) fn tree(record: &Record, records: &[Record]) -> String {
    let mut tree = Tree {
        records,
        own: record.key(),
        seen: HashSet::new(),
        text: String::new(),
    };
    let root = tree.root(record);
    tree.write(root, &Branch::default());
    tree.text
}

struct Tree<'a> {
    records: &'a [Record],
    own: ObjectKey,
    /// What was written: a volume may be a member of a group and made from a snapshot of it.
    seen: HashSet<ObjectKey>,
    text: String,
}

/// What stands before the lines of a subtree.
#[derive(Default)]
struct Branch {
    first: String,
    others: String,
}

impl<'a> Tree<'a> {
    /// The object that all others of the tree come from.
    fn root(&self, record: &'a Record) -> &'a Record {
        let mut root = record;
        let mut passed = HashSet::new();
        while passed.insert(root.key()) {
            match self.parent(root) {
                Some(parent) => root = parent,
                None => break,
            }
        }
        root
    }

    fn find(&self, kind: &str, like: &Record, name: &str) -> Option<&'a Record> {
        let is_it = |record: &&Record| {
            record.kind == kind
                && record.metadata.namespace == like.metadata.namespace
                && record.metadata.name.as_deref() == Some(name)
        };
        self.records.iter().find(is_it)
    }

    /// Of a volume the group that it is in, else what it was made from; of all others what they are of.
    fn parent(&self, record: &'a Record) -> Option<&'a Record> {
        let group = match &record.body {
            Body::Volume(Of { status, .. }) => status.group_name.as_deref(),
            Body::Group(_) => return None,
            Body::Snapshot(_) | Body::GroupSnapshot(_) | Body::Schedule(_) => None,
        };
        let group = group.and_then(|name| self.find("VolumeGroup", record, name));
        group.or_else(|| {
            let source = record.sources().into_iter().next()?;
            self.find(&source.kind, record, &source.name)
        })
    }

    fn children(&self, record: &Record) -> Vec<&'a Record> {
        let key = record.key();
        let is_inside = |other: &Record| match &other.body {
            Body::Volume(Of { status, .. }) if key.kind == "VolumeGroup" => {
                status.group_name.as_deref() == Some(&*key.name)
                    && other.key().namespace == key.namespace
            }
            Body::Group(_) => false,
            _ => other.sources().contains(&key),
        };
        let mut children: Vec<&Record> = self
            .records
            .iter()
            .filter(|other| is_inside(other))
            .collect();
        // Volumes come before the snapshots of them.
        children.sort_by_key(|child| (child.kind != "Volume", child.key()));
        children
    }

    fn write(&mut self, record: &'a Record, branch: &Branch) {
        let key = record.key();
        let ObjectKey {
            kind,
            namespace,
            name,
        } = &key;
        let reason = match &record.drumlin.orphan_since {
            Some(_) => "Orphan",
            None => record
                .condition("Ready")
                .map_or("Pending", |ready| &ready.reason),
        };
        let mark = if key == self.own { "  *" } else { "" };
        let Branch { first, others } = branch;
        let _ = writeln!(
            self.text,
            "  {first}{kind}/{namespace}/{name}  {reason}{mark}"
        );
        if !self.seen.insert(key) {
            return;
        }
        let children = self.children(record);
        let last = children.len().saturating_sub(1);
        for (index, child) in children.into_iter().enumerate() {
            let (line, below) = if index == last {
                ("└─ ", "   ")
            } else {
                ("├─ ", "│  ")
            };
            let branch = Branch {
                first: format!("{others}{line}"),
                others: format!("{others}{below}"),
            };
            self.write(child, &branch);
        }
    }
}
