//! What belongs to an object, as a tree: a group, its volumes and group snapshots, their snapshots and the volumes made
//! from those.

use std::{collections::HashSet, fmt::Write};

use anstyle::Style;
use drumlin_crd::ObjectKey;
use serde::Serialize;

use crate::{
    record::{Body, Of, Record},
    status::row,
};

/// An object of a tree.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Node {
    kind: String,
    namespace: String,
    name: String,
    /// The reason of its `Ready` condition.
    reason: String,
    /// The colour of its state.
    #[serde(skip)]
    style: Style,
    /// What comes from it. An object that comes from several has its own children in one place only.
    children: Vec<Node>,
}

/// The tree that an object is in.
pub(super) fn tree(record: &Record, records: &[Record]) -> Node {
    let mut tree = Tree {
        records,
        seen: HashSet::new(),
    };
    let root = tree.root(record);
    tree.node(root)
}

struct Tree<'a> {
    records: &'a [Record],
    /// What has its node: a volume may be a member of a group and made from a snapshot of it.
    seen: HashSet<ObjectKey>,
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

    fn node(&mut self, record: &'a Record) -> Node {
        let row = row(record);
        let style = row.style();
        let children = if self.seen.insert(record.key()) {
            self.children(record)
        } else {
            Vec::new()
        };
        Node {
            kind: row.kind,
            namespace: row.namespace,
            name: row.name,
            reason: row.reason,
            style,
            children: children.into_iter().map(|child| self.node(child)).collect(),
        }
    }
}

impl Node {
    /// The tree as text, with this object marked.
    pub(super) fn render(&self, own: &ObjectKey) -> String {
        let mut text = String::new();
        self.write(&mut text, own, &Branch::default());
        text
    }

    fn write(&self, text: &mut String, own: &ObjectKey, branch: &Branch) {
        let Self {
            kind,
            namespace,
            name,
            reason,
            style,
            children,
        } = self;
        let is_own = (kind, namespace, name) == (&own.kind, &own.namespace, &own.name);
        let mark = if is_own { "  *" } else { "" };
        let Branch { first, others } = branch;
        let _ = writeln!(
            text,
            "  {first}{kind}/{namespace}/{name}  {style}{reason}{style:#}{mark}"
        );
        let last = children.len().saturating_sub(1);
        for (index, child) in children.iter().enumerate() {
            let (line, below) = if index == last {
                ("└─ ", "   ")
            } else {
                ("├─ ", "│  ")
            };
            let branch = Branch {
                first: format!("{others}{line}"),
                others: format!("{others}{below}"),
            };
            child.write(text, own, &branch);
        }
    }
}
