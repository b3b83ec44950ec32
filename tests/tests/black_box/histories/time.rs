//! Time as an event: hours pass beneath running processes, and nothing is started again.
//!
//! What must come of each event here does so by time alone: by a drift check, a backoff, a probe of a class that is away.

use std::{fs, time::Duration};

use drumlin_tests::random::Random;
use nix::mount::{MntFlags, umount2};

use super::stage::Stage;

/// So many times faster than the clock: the drift check of ten minutes comes each half second.
pub(super) const FACTOR: u32 = 1200;

/// What happens within the hours.
#[derive(Debug, Clone, Copy)]
enum Event {
    Edit,
    Use,
    DiskAwayAndBack,
    Unmount,
}

impl Stage {
    /// Hours pass, in which a few things happen.
    pub(super) async fn hours_pass(&mut self, random: &mut Random) {
        self.told("hours pass".to_owned());
        self.start_time_lapse().await;
        for _ in 0..3 {
            let event = random.one(&[
                Event::Edit,
                Event::Use,
                Event::DiskAwayAndBack,
                Event::DiskAwayAndBack,
                Event::Unmount,
            ]);
            match event {
                Event::Edit => self.edit(random),
                Event::Use => self.use_one(random),
                Event::DiskAwayAndBack => self.disk_leaves_and_comes_back(random).await,
                Event::Unmount => self.somebody_unmounts(),
            }
            self.settle().await;
        }
    }

    async fn disk_leaves_and_comes_back(&mut self, random: &mut Random) {
        let (disk, away) = self.disk_and_away();
        self.told("the disk leaves".to_owned());
        fs::rename(&disk, &away).unwrap();
        // An edit meanwhile is seen before the disk is back, or after it, or at the same time.
        let pause = Duration::from_millis(random.below(600));
        if random.chance(60) {
            self.edit(random);
        }
        tokio::time::sleep(pause).await;
        assert!(!disk.exists(), "something was made in its place");
        self.told("the disk comes back".to_owned());
        fs::rename(&away, &disk).unwrap();
    }

    fn somebody_unmounts(&mut self) {
        let path = self.mount_point();
        let is_so = umount2(&path, MntFlags::empty()).is_ok();
        self.told(format!("somebody unmounts, which was possible: {is_so}"));
    }
}
