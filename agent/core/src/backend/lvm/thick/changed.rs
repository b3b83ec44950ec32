//! Changed blocks of thick snapshots: the exception store of the older one names what was overwritten since, and the
//! bytes decide.

use std::{
    iter::Peekable,
    ops::Range,
    path::{Path, PathBuf},
};

use crate::{
    Result,
    backend::{ChangedQuery, RangeSink, lvm::Lvm},
    blocking,
    host::{
        changed::{Pair, differing_in},
        overwritten::Overwritten,
    },
};

impl Lvm {
    /// Finds the changed blocks of a thick snapshot; all of its extents hold data.
    pub(crate) async fn changed_thick(
        &self,
        query: ChangedQuery,
        mut sink: Box<dyn RangeSink>,
    ) -> Result<()> {
        let now = self.group.now().await?;
        let target = self.complete_volume(&now, query.target)?;
        let Some(base) = query.base else {
            // LVM's size of a snapshot is that of its store.
            let size = self.image(&now, &target)?.size;
            let all = query.start..size.bytes();
            if !all.is_empty() {
                let _ = blocking(move || Ok(sink.found(all))).await?;
            }
            return Ok(());
        };
        let base = self.complete_volume(&now, base)?;
        let devices = [
            self.activate(&now, base.volume).await?,
            self.activate(&now, target.volume).await?,
        ];
        let stores = [
            self.store(&now, base.volume)?,
            self.store(&now, target.volume)?,
        ];
        blocking(move || {
            let [base, target] = stores;
            // That of the older one names all; which of them it is makes no difference.
            let stores = [base.node()?, target.node()?];
            compare(&stores, &devices, query.start, &mut sink)
        })
        .await
    }
}

fn compare(
    [first, second]: &[PathBuf; 2],
    [base, target]: &[PathBuf; 2],
    start: u64,
    sink: &mut Box<dyn RangeSink>,
) -> Result<()> {
    let mut candidates = Merged::of(first, second)?;
    let pair = Pair { base, target };
    differing_in(pair, &mut candidates, start, sink)
}

/// What two stores name, by the beginnings of the ranges.
struct Merged {
    first: Peekable<Overwritten>,
    second: Peekable<Overwritten>,
}

impl Merged {
    fn of(first: &Path, second: &Path) -> Result<Self> {
        Ok(Self {
            first: Overwritten::of(first)?.peekable(),
            second: Overwritten::of(second)?.peekable(),
        })
    }
}

impl Iterator for Merged {
    type Item = Result<Range<u64>>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = |next: Option<&Result<Range<u64>>>| match next {
            Some(Ok(range)) => range.start,
            // An error comes at once.
            Some(Err(_)) => 0,
            None => u64::MAX,
        };
        if start(self.first.peek()) <= start(self.second.peek()) {
            self.first.next().or_else(|| self.second.next())
        } else {
            self.second.next()
        }
    }
}
