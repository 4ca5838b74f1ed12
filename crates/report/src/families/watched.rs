//! Answer about receivers that were watched from outside: what was lost, where, and the counts of
//! each stage.

use std::iter;
use std::time::Duration;

use daqmeter_record::RunRecord;
use daqmeter_record::units::{percent, plural, show_bytes, show_ns, significant};
use daqmeter_record::watched::{LossEffect, Watched, WatchedLoss, WatchedPlace, WatchedTrial};

use crate::aligned::{numbers_from, wrapped};
use crate::family::{Family, Work, prefixed};
use crate::figures::{Mark, Plot};
use crate::frame::Frame;

const ENGINE: &str = "watch";

pub(super) const FAMILY: Family = Family {
    engines: &[(ENGINE, Work::Sockets)],
    plots: &[Plot { id: "losses", marks }],
    questions: &[("Where are packets lost?", Some("losses"), losses)],
    headline: |records| last(records).map(|(_, watched)| answer(watched)),
    ..Family::EMPTY
};

/// Losses with words of their own; those below are in the counts.
const MAX_LOSSES: usize = 5;
const MAX_CHANGES: usize = 2;
const MAX_SOCKETS: usize = 6;

/// The last record of a watch.
fn last<'a>(records: &'a [RunRecord]) -> Option<(&'a RunRecord, &'a Watched)> {
    let of = |record: &'a RunRecord| {
        let watched = record.sections.watched.as_deref()?;
        // Runs of our own are watched, too, and say so only where the kernel lost something.
        let is_told = record.engine.name == ENGINE || watched.lost() > 0;
        is_told.then_some((record, watched))
    };
    records.iter().rev().find_map(of)
}

/// Rates over the time of the last watch.
fn marks(records: &[RunRecord]) -> Vec<Mark<'_>> {
    let Some((record, watched)) = last(records) else { return Vec::new() };
    let begins = iter::once(0).chain(watched.intervals.iter().map(|one| one.end_ns));
    let rates = watched.intervals.iter().zip(begins).flat_map(|(one, begin_ns)| {
        let (end_s, s) =
            (one.end_ns as f64 / 1e9, one.end_ns.saturating_sub(begin_ns) as f64 / 1e9);
        let mark = |name, count| Mark::at(record, name, end_s, count as f64 / s.max(1e-9));
        [mark("came in", one.came_in), mark("lost", one.lost)]
    });
    rates.collect()
}

/// Screen of a watch.
pub fn frame(watched: &Watched) -> Frame {
    let losses: String =
        watched.losses.iter().take(MAX_LOSSES).map(|loss| words(watched, loss)).collect();
    let tables = [losses, counts(watched), sockets(watched)];
    let tables = tables.into_iter().filter(|text| !text.is_empty());
    let unseen = watched.unseen.iter().map(|one| format!("not seen: {} ({})", one.shows, one.why));
    Frame {
        answer: vec![answer(watched)],
        tables: tables.map(|text| format!("\n{text}")).collect(),
        notes: watched.notes.iter().cloned().chain(unseen).collect(),
    }
}

/// Answer of the last watch, for the page.
fn losses(records: &[RunRecord]) -> Option<String> {
    let (_, watched) = last(records)?;
    let mut said = vec![answer(watched) + "."];
    said.extend(watched.losses.iter().take(MAX_LOSSES).map(|loss| sentence(watched, loss)));
    Some(said.join(" "))
}

/// Says where the kernel lost packets during a run of ours.
pub fn notes(record: &RunRecord) -> Vec<String> {
    record.sections.watched.as_deref().map(own_losses).unwrap_or_default()
}

/// Says where the kernel lost packets of this program, or of its network namespace.
pub fn own_losses(watched: &Watched) -> Vec<String> {
    let losses = watched.losses.iter().filter(|loss| loss.effect != LossEffect::Unwanted);
    losses.map(|loss| format!("in the kernel: {}", sentence(watched, loss))).collect()
}

fn sentence(watched: &Watched, loss: &WatchedLoss) -> String {
    let cause = loss.causes.first().map(|cause| format!("; {}", cause.text));
    let cause = cause.unwrap_or_default();
    let because = format!("{}, because {}{cause}.", lost(watched, loss), loss.reason);
    let trials = loss.trials.iter().map(|one| {
        let word = if one.is_proven() { "Proved" } else { "Tried" };
        format!("{word} {}.", trial(one).1)
    });
    iter::once(because).chain(trials).collect::<Vec<_>>().join(" ")
}

/// Says the result in a sentence.
fn answer(watched: &Watched) -> String {
    let (came, seconds) = (watched.sent(), watched.watch_ns as f64 / 1e9);
    let rate = significant(came as f64 / seconds.max(1e-9), 3);
    let over = format!("in {} s ({rate}/s)", significant(seconds, 3));
    let came = plural(came, "packet");
    match watched.lost() {
        0 if watched.sockets.is_empty() => {
            format!("{}: no socket was seen; nothing was lost of {came} {over}", watched.target)
        }
        0 => format!("{}: nothing was lost of {came} {over}", watched.target),
        lost => {
            let were = if lost == 1 { "was" } else { "were" };
            let packets = plural(lost, "packet");
            format!("{}: {packets} {were} lost of {came} {over}", watched.target)
        }
    }
}

/// Says how it goes in the newest intervals, which together are about this long.
pub fn newest(watched: &Watched, time: Duration) -> Option<String> {
    let last_ns = watched.intervals.last()?.end_ns;
    let since_ns = last_ns.saturating_sub(u64::try_from(time.as_nanos()).ok()?);
    let (before, newest) =
        watched.intervals.split_at(watched.intervals.partition_point(|one| one.end_ns <= since_ns));
    let time_ns = last_ns - before.last().map_or(0, |one| one.end_ns);
    let came_in: u64 = newest.iter().map(|one| one.came_in).sum();
    let lost = percent(share(newest.iter().map(|one| one.lost).sum(), came_in), 3);
    let rate = prefixed(came_in as f64 / time_ns.max(1) as f64 * 1e9, "packets/s");
    Some(format!("Now {rate}, of which {lost} % are lost."))
}

fn share(lost: u64, came_in: u64) -> f64 {
    lost as f64 / came_in.max(lost).max(1) as f64
}

/// Says where packets are lost, and how many.
fn lost(watched: &Watched, loss: &WatchedLoss) -> String {
    let share = percent(share(loss.packets, watched.sent()), 3);
    let effect = match loss.effect {
        LossEffect::Lost => "lost",
        LossEffect::Repeated => "dropped, and sent again by the peer",
        LossEffect::Unwanted => "wanted by no program",
        LossEffect::Sent => "dropped on their way out",
    };
    let place = place(loss.place);
    let at = if loss.at.is_empty() { place.to_owned() } else { format!("{place}, {}", loss.at) };
    let packets = plural(loss.packets, "packet");
    match loss.effect {
        LossEffect::Sent => format!("{at}: {packets} {effect}"),
        _ => format!("{at}: {packets} {effect} ({share} %)"),
    }
}

fn words(watched: &Watched, loss: &WatchedLoss) -> String {
    let mut lines = vec![("", lost(watched, loss))];
    lines.push(("because", format!("{}{}", loss.reason, bursts(loss))));
    for cause in &loss.causes {
        let of = if loss.causes.len() > 1 {
            format!(" ({} %)", percent(cause.packets as f64 / loss.packets.max(1) as f64, 2))
        } else {
            String::new()
        };
        lines.push(("", format!("{}{of}", cause.text)));
    }
    // A cause without a change of its own asks for that of the place: a larger buffer.
    let own = |change| if String::is_empty(change) { &loss.change } else { change };
    let changes = loss.causes.iter().map(|cause| own(&cause.change)).chain([&loss.change]);
    let mut different: Vec<&String> = Vec::new();
    for change in changes.filter(|change| !change.is_empty()) {
        if !different.contains(&change) {
            different.push(change);
        }
    }
    let changes = different.into_iter().take(MAX_CHANGES);
    for (word, change) in ["change", "or"].into_iter().zip(changes) {
        lines.push((word, change.clone()));
    }
    lines.extend(loss.trials.iter().map(trial));
    lines.push(("counted", format!("by {}", loss.counted_by)));
    let line = |(at, (word, text)): (usize, (&str, String))| match at {
        0 => wrapped(&text, 2) + "\n",
        _ => wrapped(&format!("  {word:<7}  {text}"), 11) + "\n",
    };
    lines.into_iter().enumerate().map(line).collect()
}

/// Says what a change did to the loss.
fn trial(trial: &WatchedTrial) -> (&'static str, String) {
    let [before, after] = [trial.before, trial.after].map(|turns| percent(turns.share(), 3));
    let (turns, turn) = (2 * trial.turns, show_ns(trial.turn_ns as f64));
    let lost = format!("lost {before} % without and {after} % with it, in {turns} turns of {turn}");
    match (trial.is_proven(), trial.confirms) {
        (true, _) => ("proved", format!("by {}: {lost}", trial.change)),
        (false, false) => ("tried", format!("{}: no gain is proven; {lost}", trial.change)),
        (false, true) => ("tried", format!("{}: the loss did not follow; {lost}", trial.change)),
    }
}

/// Says how often a buffer was full, and for how long.
fn bursts(loss: &WatchedLoss) -> String {
    match loss.bursts {
        0 => String::new(),
        bursts => format!(
            ", {}, the longest {}{}",
            plural(bursts, "time"),
            show_ns(loss.longest_ns as f64),
            match loss.enough_bytes {
                0 => String::new(),
                bytes => format!("; {} would have held all", show_bytes(bytes)),
            }
        ),
    }
}

fn place(place: WatchedPlace) -> &'static str {
    match place {
        WatchedPlace::BeforeThisHost => "before this host",
        WatchedPlace::Card => "network card",
        WatchedPlace::Driver => "driver and XDP",
        WatchedPlace::Backlog => "backlog of a CPU",
        WatchedPlace::TrafficControl => "traffic control",
        WatchedPlace::Ip => "IP and firewall",
        WatchedPlace::Transport => "UDP and TCP",
        WatchedPlace::Socket => "socket",
        WatchedPlace::Exit => "exit of this host",
        WatchedPlace::Program => "program",
    }
}

fn counts(watched: &Watched) -> String {
    let headings = ["stage", "came in", "lost", "others", "went on"];
    let rows = watched.stages.iter().map(|stage| {
        let name = place(stage.place).to_owned();
        let other = stage.other.to_string();
        vec![
            name,
            stage.came_in.to_string(),
            stage.lost.to_string(),
            other,
            stage.went_on.to_string(),
        ]
    });
    numbers_from(1, &headings, rows)
}

fn sockets(watched: &Watched) -> String {
    let used = watched.sockets.iter().filter(|socket| socket.drops + socket.most_filled_bytes > 0);
    let rows: Vec<Vec<String>> = used
        .take(MAX_SOCKETS)
        .map(|socket| {
            let pid = socket.pid.map_or(String::new(), |pid| format!(" ({pid})"));
            let [most, buffer] = [socket.most_filled_bytes, socket.buffer_bytes].map(show_bytes);
            let name = format!("{}{pid}", socket.process);
            // TCP also drops what came twice.
            let is_tcp = socket.name.starts_with("tcp/");
            let drops = if is_tcp { "-".to_owned() } else { socket.drops.to_string() };
            vec![socket.name.clone(), name, drops, most, buffer]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let headings = ["socket", "program", "dropped", "most waiting", "buffer"];
    numbers_from(2, &headings, rows)
}

#[cfg(test)]
mod tests {
    use daqmeter_record::watched::{TurnCounts, WatchedCause, WatchedInterval, WatchedStage};

    use super::*;

    #[test]
    fn the_page_says_where_packets_are_lost_and_why() {
        let cause = WatchedCause { text: "thread rx slept".into(), ..WatchedCause::default() };
        let loss = WatchedLoss {
            place: WatchedPlace::Socket,
            at: "udp/5000 of recorder (812)".into(),
            reason: "its buffer of 208 KiB was full".into(),
            packets: 25,
            effect: LossEffect::Lost,
            counted_by: "the socket's drops".into(),
            change: String::new(),
            causes: vec![cause],
            bursts: 2,
            longest_ns: 3_000_000,
            enough_bytes: 0,
            trials: vec![WatchedTrial {
                change: "a buffer of 4 MiB".into(),
                turns: 8,
                turn_ns: 400_000_000,
                before: TurnCounts { packets: 1000, lost: 25 },
                after: TurnCounts { packets: 900, lost: 0 },
                less_low: 0.02,
                less_high: 0.03,
                ..WatchedTrial::default()
            }],
        };
        let place = WatchedPlace::Card;
        let stage = WatchedStage { place, came_in: 1000, went_on: 1000, lost: 0, other: 0 };
        let watched = Watched {
            target: "recorder (812)".into(),
            watch_ns: 2_000_000_000,
            stages: vec![stage],
            losses: vec![loss],
            ..Watched::default()
        };
        let mut record = RunRecord::default();
        record.sections.watched = Some(Box::new(watched));
        let said = losses(&[record.clone()]).unwrap();
        assert_eq!(
            said,
            "recorder (812): 25 packets were lost of 1000 packets in 2 s (500/s). socket, \
             udp/5000 of recorder (812): 25 packets lost (2.5 %), because its buffer of 208 KiB \
             was full; thread rx slept. Proved by a buffer of 4 MiB: lost 2.5 % without and 0 % \
             with it, in 16 turns of 400 ms."
        );
        let screen = frame(record.sections.watched.as_ref().unwrap()).text(None);
        assert!(screen.contains("full, 2 times, the longest 3 ms\n"), "{screen}");
        let proved =
            "proved   by a buffer of 4 MiB: lost 2.5 % without and 0 % with it, in 16 turns";
        assert!(screen.contains(proved), "{screen}");
        assert!(losses(&[RunRecord::default()]).is_none());
    }

    #[test]
    fn the_newest_time_has_a_rate_and_a_share() {
        let interval = |at: u64| WatchedInterval {
            end_ns: at * 400_000_000,
            came_in: 1000 * at,
            lost: 10 * at,
        };
        let intervals = (1..=5).map(interval).collect();
        let said = newest(&Watched { intervals, ..Watched::default() }, Duration::from_secs(1));
        assert_eq!(said.unwrap(), "Now 10 k packets/s, of which 1 % are lost.");
        assert!(newest(&Watched::default(), Duration::from_secs(1)).is_none());
    }
}
