//! Files that are being written: their pages, and what changes on them.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use daqmeter_record::jsonl::is_being_written;
use daqmeter_report::{LivePage, Parts, live_page};

use super::{MAX_FILE_BYTES, Site, Unread, read};
use crate::http::{Events, Next};

/// A file that grew within so long is called live, whoever writes it.
const RECENT: Duration = Duration::from_secs(15);
/// As many pages are remembered.
const MAX_MADE: usize = 4;
/// After the time that a page took, so many times as long passes before it is made again.
const PAUSES: u32 = 4;

/// Whether a file is being written, or grew just now.
pub(super) fn is_live(file: &Path) -> bool {
    let age = || SystemTime::now().duration_since(Stamp::of(file)?.1).ok();
    age().is_some_and(|age| age < RECENT) || is_being_written(file)
}

/// Length of a file and the time of its last change: another stamp, another page.
#[derive(Clone, Copy, PartialEq)]
struct Stamp(u64, SystemTime);

impl Stamp {
    fn of(file: &Path) -> Option<Stamp> {
        let facts = std::fs::metadata(file).ok()?;
        Some(Stamp(facts.len(), facts.modified().ok()?))
    }
}

/// A page as it was made.
struct Made {
    stamp: Option<Stamp>,
    parts: Parts,
    took: Duration,
}

/// The pages that were made last, so that several who follow one file share them.
#[derive(Default)]
pub(super) struct Live {
    made: Mutex<VecDeque<(PathBuf, Arc<Made>)>>,
}

impl Live {
    /// The page of a file, which asks for its events there.
    pub(super) fn page(&self, file: &Path, events: &str) -> Result<LivePage, Unread> {
        // Before it is read: what comes meanwhile is an event.
        let stamp = Stamp::of(file);
        let begin = Instant::now();
        let contents = read(file, MAX_FILE_BYTES)?;
        let page = live_page(&contents.records, events).map_err(Unread::Page)?;
        let made = Made { stamp, parts: page.parts.clone(), took: begin.elapsed() };
        self.keep(file, Arc::new(made));
        Ok(page)
    }

    /// The page as it is now, made anew where the file changed.
    fn now(&self, file: &Path) -> Option<Arc<Made>> {
        let known = self.known(file);
        match known {
            Some(made) if made.stamp == Stamp::of(file) => Some(made),
            _ => {
                self.page(file, "").ok()?;
                self.known(file)
            }
        }
    }

    fn known(&self, file: &Path) -> Option<Arc<Made>> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let of_file = made.iter().find(|(path, _)| path == file);
        of_file.map(|(_, made)| made.clone())
    }

    fn keep(&self, file: &Path, page: Arc<Made>) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|(path, _)| path != file);
        made.truncate(MAX_MADE - 1);
        made.push_front((file.to_owned(), page));
    }
}

/// Follows a file for one page.
pub(super) struct Following {
    site: Arc<Site>,
    file: PathBuf,
    /// The state that the page was in when it asked.
    from: String,
    /// What it shows; none before the first look.
    shown: Option<Arc<Made>>,
    not_before: Instant,
}

impl Following {
    pub(super) fn new(site: Arc<Site>, file: PathBuf, from: &str) -> Following {
        Following { site, file, from: from.to_owned(), shown: None, not_before: Instant::now() }
    }

    /// Whether the page shows the file as it is.
    fn is_true(&self) -> bool {
        let shown = self.shown.as_ref();
        shown.is_some_and(|shown| shown.stamp == Stamp::of(&self.file))
    }

    /// The event that brings the page up to date; none where it is.
    fn update(&mut self, now: Arc<Made>) -> Option<String> {
        let is_first = self.shown.is_none();
        let before = self.shown.replace(now.clone());
        let parts = match &before {
            Some(before) => now.parts.update_from(&before.parts),
            None if is_first && self.from == now.parts.state => None,
            // A page of another state: all of it.
            None => now.parts.update_from(&Parts::default()),
        }?;
        let state = &now.parts.state;
        Some(format!("id: {state}\nevent: parts\ndata: {parts}\n\n"))
    }
}

impl Events for Following {
    fn next(&mut self) -> Next {
        const END: &str = "event: end\ndata: {}\n\n";
        if self.is_true() || Instant::now() < self.not_before {
            let has_ended = self.is_true() && !is_live(&self.file);
            return match has_ended {
                true => Next::Last(END.to_owned()),
                false => Next::None,
            };
        }
        // A file that went away, or became too long for a page, is followed no more.
        let Some(now) = self.site.live.now(&self.file) else {
            return Next::Last(END.to_owned());
        };
        self.not_before = Instant::now() + now.took * PAUSES;
        self.update(now).map_or(Next::None, Next::Event)
    }
}
