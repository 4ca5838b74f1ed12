//! The groups of a path's elements in a layout, and the reasons for which it cannot have them.

use std::ops::Range;

use daqmeter_record::path::End;
use daqmeter_record::units::plural;

use crate::definition::layout::{Group, Layout, MAX_THREADS};
use crate::definition::{Element, Path};

const NOT_OF_A_CARD: &str = "but a card that is read out live is a pipeline, or fused with a thread for each DMA channel: write pipeline or fused";

impl Path {
    /// Groups of a layout, from source to sink. Fails with the reason for which the path cannot be
    /// run in it; [`Layout::Auto`] is none that can be run.
    pub(crate) fn groups(&self, layout: &Layout) -> Result<Vec<Group>, String> {
        let last = self.stages.len() + 1;
        if self.is_live() {
            self.check_card(layout)?;
        }
        let groups = match layout {
            Layout::Auto | Layout::Pipeline => {
                let threads = self.threads().into_iter().enumerate();
                return Ok(threads
                    .map(|(at, workers)| Group { elements: at..at + 1, workers })
                    .collect());
            }
            Layout::Fused(workers) => vec![Group { elements: 0..last + 1, workers: *workers }],
            Layout::Groups(groups) => self.named(groups)?,
        };
        if !self.is_live() {
            groups.iter().try_for_each(|group| self.check_group(group))?;
        }
        for pair in groups.windows(2) {
            let [from, to] = [pair[0].workers, pair[1].workers];
            if from != to && from != 1 && to != 1 {
                return Err(format!(
                    "has {to} threads behind {from}; 1 or as many as before are wanted"
                ));
            }
        }
        Ok(groups)
    }

    /// Layout of a run on a number of CPUs; [`Layout::Auto`] stays for a path that tries layouts. A
    /// card is fused if readers and receivers cannot have a CPU each: with fewer it carried 1.2 to
    /// 1.4 times as much, with two for each channel 0.8 to 1.2 times (book, layouts).
    pub(crate) fn layout_of_run(&self, layout: &Layout, cpus: f64) -> Layout {
        let channels = self.streams();
        let fused = Layout::Fused(channels);
        match layout {
            Layout::Auto | Layout::Fused(1) if !self.is_live() => layout.clone(),
            Layout::Auto if cpus < 2.0 * channels as f64 && self.groups(&fused).is_ok() => fused,
            Layout::Auto => Layout::Pipeline,
            Layout::Fused(1) => fused,
            other => other.clone(),
        }
    }

    /// Fails with the reason for which a card cannot be read out in a layout.
    fn check_card(&self, layout: &Layout) -> Result<(), String> {
        let channels = self.streams();
        let why = match layout {
            Layout::Auto | Layout::Pipeline => return Ok(()),
            Layout::Fused(threads) if ![1, channels].contains(threads) => NOT_OF_A_CARD,
            Layout::Groups(_) => NOT_OF_A_CARD,
            _ if self.receivers() != channels => {
                "in which each reader's thread has a receiver: leave the number of receivers out"
            }
            _ if !self.last().cpus.is_empty() => {
                "in which receivers have no threads of their own: leave their CPUs out"
            }
            _ => return Ok(()),
        };
        Err(format!("is {layout}, {why}"))
    }

    /// Name of the threads of these elements.
    pub(crate) fn part(&self, elements: &Range<usize>, end: Option<End>) -> String {
        match (&self.names()[elements.clone()], end) {
            ([name], Some(End::Out)) => format!("{name} out"),
            ([name], Some(End::In)) => format!("{name} in"),
            ([first, .., last], _) => format!("{first} to {last}"),
            (names, _) => names.concat(),
        }
    }

    fn named(&self, groups: &[(Vec<String>, usize)]) -> Result<Vec<Group>, String> {
        let names = self.names();
        let said: Vec<String> = groups.iter().flat_map(|(own, _)| own).cloned().collect();
        if said != names {
            let [said, names] = [said, names].map(|names| names.join(", "));
            return Err(format!("names {said}; each part once is wanted, in this order: {names}"));
        }
        let mut next = 0;
        let group = |(own, workers): &(Vec<String>, usize)| {
            let begin = next;
            next += own.len();
            Group { elements: begin..next, workers: *workers }
        };
        Ok(groups.iter().map(group).collect())
    }

    fn check_group(&self, group: &Group) -> Result<(), String> {
        let Group { elements, workers } = group;
        let last = self.stages.len() + 1;
        if !(1..=MAX_THREADS).contains(workers) {
            return Err(format!("has {workers} threads; 1 to {MAX_THREADS} are wanted"));
        }
        let boards = self.source_facts().boards.len();
        if elements.contains(&0) && boards > 0 && *workers > boards {
            let boards = plural(boards as u64, "board");
            return Err(format!("has {workers} threads for {boards}: at most one for each"));
        }
        for Element { name, facts, .. } in &self.elements[elements.clone()] {
            if facts.is_program && (elements.len() > 1 || *workers > 1) {
                return Err(format!(
                    "has {name} in a thread with other parts, or several times; a program needs a group of its own, such as [{name}]"
                ));
            }
        }
        if *workers > 1 && elements.contains(&last) {
            let Element { name: sink, facts, .. } = self.last();
            let why = match (self.is_ordered, !facts.is_outside) {
                (true, _) => "is ordered",
                (false, true) => return Ok(()),
                (false, false) => "one thread writes",
            };
            return Err(format!(
                "has {workers} threads for {sink}, which {why}: give it a group of its own, [{sink}]"
            ));
        }
        Ok(())
    }
}
