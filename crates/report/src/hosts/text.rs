//! The answer about many hosts on a terminal: at most 30 lines of 80 columns.

use daqmeter_record::units::{joined, percent, plural, significant};

use super::{GroupDifference, HostFinding, HostVerdict, JudgedFarm, JudgedGroup, JudgedHost};
use crate::aligned::{asks_all, plain, wrapped};
use crate::frame::Frame;
use crate::levels::MANY;

/// Lines of the screen, and how many hosts it shows of each verdict: as many as it has room for.
const MAX_LINES: usize = 30;
const HOSTS: [usize; 4] = [6, 4, 2, 1];
/// Most groups, findings of a host, and names of a line.
const MAX_GROUPS: usize = 5;
const MAX_FINDINGS: usize = 3;
const MAX_NAMES: usize = 8;

impl JudgedFarm {
    pub fn frame(&self) -> Frame {
        if asks_all() {
            return self.frame_of(usize::MAX);
        }
        let fits = |frame: &Frame| frame.text(None).lines().count() <= MAX_LINES;
        let found = HOSTS.into_iter().map(|hosts| self.frame_of(hosts)).find(fits);
        found.unwrap_or_else(|| self.frame_of(1))
    }

    fn frame_of(&self, hosts: usize) -> Frame {
        let sections = [
            self.groups_text(),
            self.section("differ from their group", HostVerdict::Different, hosts),
            self.section("far off, in too few runs", HostVerdict::Unconfirmed, hosts),
            self.section("suspects", HostVerdict::Suspect, hosts),
            self.again(),
            self.between(),
            self.visible(),
        ];
        let tables = sections.into_iter().flatten().map(|text| format!("\n{text}")).collect();
        Frame { answer: vec![self.answer()], tables, notes: self.notes() }
    }

    /// Says the result in a sentence.
    pub(crate) fn answer(&self) -> String {
        let hosts = plural(self.hosts.len() as u64, "host");
        let groups = plural(self.groups.len() as u64, "group");
        let all = if self.is_paired { format!("{hosts} before and after") } else { hosts };
        let count = |verdict| self.of(verdict).len();
        let slower = self.groups.iter().flat_map(|group| &group.differences);
        let since = slower.filter(|_| self.is_paired).count();
        let parts = [
            (count(HostVerdict::Different), "differs from its group", "differ from their group"),
            (
                count(HostVerdict::Unconfirmed),
                "is far off in too few runs",
                "are far off in too few runs",
            ),
            (count(HostVerdict::Suspect), "is a suspect", "are suspects"),
            (count(HostVerdict::NotSeen), "has no group", "have no group"),
            (self.missing.len(), "is missing", "are missing"),
        ];
        let parts = parts.iter().filter(|(count, ..)| *count > 0);
        let said = |&(count, one, many): &(usize, &str, &str)| {
            format!("{count} {}", if count == 1 { one } else { many })
        };
        let found = joined(parts.map(said), ", ").unwrap_or_else(|| "none differs".to_owned());
        match since {
            0 => format!("{all}, {groups}: {found}"),
            _ => format!("{all}, {groups}: the change shows on whole groups; {found}"),
        }
    }

    fn groups_text(&self) -> Option<String> {
        let row = |group: &JudgedGroup| {
            let own = self.hosts.iter().filter(|host| host.group == group.letter);
            let differ = own.filter(|host| host.verdict == HostVerdict::Different).count();
            let differ = if differ == 0 { "-".to_owned() } else { differ.to_string() };
            vec![group.letter.clone(), group.hosts.to_string(), differ, group.name.clone()]
        };
        let most = if asks_all() { usize::MAX } else { MAX_GROUPS };
        let shown = self.groups.iter().take(most).map(row);
        let left = self.groups.len().saturating_sub(most);
        let more = (left > 0).then(|| format!(" {left} more groups: --all\n"));
        let table = plain(&["group", "hosts", "differ", "kind"], shown);
        Some(table + &more.unwrap_or_default())
    }

    fn section(&self, title: &str, verdict: HostVerdict, most: usize) -> Option<String> {
        let hosts = self.of(verdict);
        let lines = hosts.iter().take(most).map(|host| {
            let found = host.findings.iter().take(MAX_FINDINGS).map(HostFinding::said);
            let broken = host.notes.first().cloned().filter(|_| host.findings.is_empty());
            let left = host.findings.len().saturating_sub(MAX_FINDINGS);
            let more = (left > 0).then(|| format!("{left} more"));
            let found = joined(found.chain(broken).chain(more), "; ").unwrap_or_default();
            wrapped(&format!("  {} ({}): {found}", host.name, host.group), 6) + "\n"
        });
        let lines: String = lines.collect();
        let left = hosts.len().saturating_sub(most);
        let more = if left > 0 { format!("  {left} more: --all\n") } else { String::new() };
        (!hosts.is_empty()).then(|| format!("{title}\n{lines}{more}"))
    }

    /// Says how to measure doubtful hosts again.
    fn again(&self) -> Option<String> {
        let verdicts = [HostVerdict::Unconfirmed, HostVerdict::Suspect];
        let hosts: Vec<&JudgedHost> = verdicts.into_iter().flat_map(|own| self.of(own)).collect();
        let first = hosts.first()?;
        let wanted = |host: &&JudgedHost| {
            let wanted = host.findings.iter().filter_map(|found| found.runs_wanted).min();
            wanted.map(|runs| runs.saturating_sub(host.runs))
        };
        let runs = hosts.iter().filter_map(wanted).max().unwrap_or(1).max(1);
        let names = listed(hosts.iter().map(|host| host.name.clone()).collect());
        let times = if runs > 1 {
            format!("{runs} times, at different hours")
        } else {
            "once more".to_owned()
        };
        let line = format!("measure {names} {times}: {}", first.command);
        Some(wrapped(&line, 2) + "\n")
    }

    fn between(&self) -> Option<String> {
        let own = self.groups.iter().filter(|group| !group.differences.is_empty());
        let lines = own.take(MAX_GROUPS).map(|group| {
            let found = group.differences.iter().take(MAX_NAMES).map(GroupDifference::said);
            let against = if self.is_paired { "since before" } else { "against A" };
            let found = joined(found, ", ").unwrap_or_default();
            wrapped(&format!("  {} {against}: {found}", group.letter), 6) + "\n"
        });
        let lines: String = lines.collect();
        (!lines.is_empty()).then(|| format!("from group to group\n{lines}"))
    }

    /// Says which slowdowns would show.
    fn visible(&self) -> Option<String> {
        let group = self.groups.iter().find(|group| !group.visible.is_empty())?;
        let each =
            group.visible.iter().map(|(kind, by)| format!("{} {} %", kind.name(), percent(*by, 2)));
        let each = joined(each, ", ").unwrap_or_default();
        let line = format!("shows in group {}, if a host is slower by: {each}", group.letter);
        Some(wrapped(&line, 2) + "\n")
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        let missing = self.missing.iter().map(|(name, why)| (why.clone(), name.clone()));
        let noted =
            |host: &JudgedHost| Some((joined(host.notes.clone(), "; ")?, host.name.clone()));
        let notes = missing.chain(self.hosts.iter().filter_map(noted));
        let notes = crate::groups::in_groups(notes).into_iter();
        let notes = notes.map(|(why, names)| format!("{}: {why}", listed(names)));
        let used = self.hosts.iter().filter(|host| host.others > MANY);
        let most = used.clone().max_by(|a, b| a.others.total_cmp(&b.others));
        let used = most.map(|most| {
            let (hosts, share) = (plural(used.count() as u64, "host"), percent(most.others, 2));
            format!("others used CPUs of {hosts}, most of {}: {share} % of them", most.name)
        });
        notes.chain(used).collect()
    }
}

fn listed(names: Vec<String>) -> String {
    let left = names.len().saturating_sub(MAX_NAMES);
    let more = (left > 0).then(|| format!("and {left} more"));
    joined(names.into_iter().take(MAX_NAMES).chain(more), ", ").unwrap_or_default()
}

impl HostFinding {
    /// Says a finding: `memory 5.2 % slower (4.1 to 6.3), 2 runs`.
    pub(crate) fn said(&self) -> String {
        let what = self.point.as_deref().unwrap_or(self.kind.name());
        let runs = if self.runs > 1 { format!(", {} runs", self.runs) } else { String::new() };
        format!("{what} {}{runs}", shown(self.ratio, self.interval))
    }
}

impl GroupDifference {
    fn said(&self) -> String {
        format!("{} {}", self.what, shown(self.ratio, self.interval))
    }
}

/// Writes a ratio of times: `5.2 % slower (4.1 to 6.3)`, `takes 3 times as long (2.7 to 3.3)`.
pub(crate) fn shown(ratio: f64, (low, high): (f64, f64)) -> String {
    let by = |ratio: f64| percent((ratio - 1.0).abs(), 2);
    let times = |ratio: f64| significant(ratio, 2);
    match ratio {
        2.0.. => {
            format!("takes {} times as long ({} to {})", times(ratio), times(low), times(high))
        }
        1.0.. => format!("{} % slower ({} to {})", by(ratio), by(low), by(high)),
        _ => format!("{} % faster ({} to {})", by(ratio), by(high), by(low)),
    }
}
