//! What is missing in words: by triggers for all E-links together, and by places in the file.

use daqmeter_record::Lost;

use super::tables::{ElinkRow, Findings, fault};
use crate::witness::{Gap, GapKind, Judged};

/// Sentences about places in the run, and E-links that a sentence names.
const MAX_SENTENCES: usize = 20;
const MAX_NAMES: usize = 4;

/// Adds the messages of the judgement to those of the blocks, in the order of their places.
pub(super) fn findings(
    mut findings: Findings,
    rows: &[ElinkRow],
    judged: &[Judged],
    level: u8,
) -> Findings {
    let own = std::mem::take(&mut findings.messages);
    let blocks = findings.block;
    for (row, judged) in rows.iter().zip(judged) {
        let elink = row.elink;
        let mut say = |at: crate::witness::Moment, what, is_fault, more: String| {
            (findings.position, findings.block) = (at.place, at.block);
            let line = || format!("E-link {elink:#05x}{more}");
            match is_fault {
                true => findings.fault(what, line),
                false => findings.message(what, line),
            }
        };
        for gap in &judged.gaps {
            if let Some([expected, seen]) = gap.sequence {
                say(gap.at, fault::SEQUENCE, true, format!(": expected {expected}, seen {seen}"));
            }
            if level < 3 && gap.or.is_none() {
                continue;
            }
            match (gap.missing, gap.or) {
                (0, None) => {}
                (0, Some(_)) => say(gap.at, fault::UNCLEAR, false, format!(": {}", reading(gap))),
                _ => say(gap.at, fault::MISSING, false, format!(": {} before it", reading(gap))),
            }
        }
        for (at, events, blocks) in &judged.late {
            if *blocks > 0 {
                say(*at, fault::LATE_BLOCK, true, String::new());
            }
            if *events > 0 && level >= 3 {
                say(*at, fault::LATE, false, format!(": {events}"));
            }
        }
        for at in &judged.wrong {
            say(*at, fault::NUMBER, true, String::new());
        }
    }
    findings.block = blocks;
    findings.messages.extend(own);
    findings.messages.sort_by_key(|(place, _)| *place);
    let kept = findings.messages.len().min(findings.max_messages);
    findings.left_out += (findings.messages.len() - kept) as u64;
    findings.messages.truncate(kept);
    findings
}

fn reading(gap: &Gap) -> String {
    let Gap { missing, or, .. } = *gap;
    match (gap.kind, or) {
        (_, None) => missing.to_string(),
        (GapKind::Fall, Some(or)) => format!("a reset, or {or} events are missing"),
        (GapKind::Begin | GapKind::End, Some(or)) => format!("{or} events, if they were sent"),
        (GapKind::Jump, Some(or)) => format!("{missing} or {or}"),
    }
}

/// Returns what is missing by E-links.
pub(super) fn gaps(rows: &[ElinkRow], judged: &[Judged]) -> Vec<Lost> {
    let of = |(row, judged): (&ElinkRow, &Judged)| -> Vec<Lost> {
        let elink = row.elink;
        let lost = |gap: &Gap| {
            let (from, least) = (gap.from, gap.missing);
            Lost { elink, from, least, most: gap.or.unwrap_or(0).max(least) }
        };
        judged.gaps.iter().map(lost).filter(|lost| lost.most > 0).collect()
    };
    rows.iter().zip(judged).flat_map(of).collect()
}

/// Says for each place in the run what is missing, and on which E-links.
pub(super) fn sentences(rows: &[ElinkRow], judged: &[Judged], level: u8) -> Vec<String> {
    let (one, many) = if level < 3 { ("block", "blocks") } else { ("event", "events") };
    let mut gaps: Vec<(u64, u64, usize, &Gap)> = Vec::new();
    for (at, judged) in judged.iter().enumerate() {
        gaps.extend(judged.gaps.iter().filter_map(|gap| {
            let count = gap.missing.max(gap.or.unwrap_or(0));
            (count > 0).then_some((gap.from, gap.from + count - 1, at, gap))
        }));
    }
    gaps.sort_by_key(|(from, ..)| *from);
    let mut sentences = Vec::new();
    let mut rest = &gaps[..];
    while let [(from, first_end, ..), ..] = rest {
        let (mut end, mut count) = (*first_end, 0);
        while let Some((begin, until, ..)) = rest.get(count).filter(|(begin, ..)| *begin <= end) {
            debug_assert!(begin <= until);
            end = end.max(*until);
            count += 1;
        }
        let (here, behind) = rest.split_at(count);
        rest = behind;
        sentences.push(sentence(rows, here, [*from, end], [one, many]));
    }
    let left = sentences.len().saturating_sub(MAX_SENTENCES);
    sentences.truncate(MAX_SENTENCES);
    sentences.extend((left > 0).then(|| format!("... and at {left} other places")));
    sentences
}

fn sentence(
    rows: &[ElinkRow],
    here: &[(u64, u64, usize, &Gap)],
    [from, end]: [u64; 2],
    [one, many]: [&str; 2],
) -> String {
    let range = match from == end {
        true => format!("{one} {from}"),
        false => format!("{many} {from} to {end}"),
    };
    let mut elinks: Vec<u16> = here.iter().map(|(_, _, at, _)| rows[*at].elink).collect();
    elinks.sort_unstable();
    elinks.dedup();
    let names = |elinks: &[u16]| {
        elinks.iter().map(|elink| format!("{elink:#05x}")).collect::<Vec<_>>().join(", ")
    };
    let which = match elinks.len() {
        all if all == rows.len() && all > 1 => format!("all {all} E-links"),
        1 => format!("E-link {} only", names(&elinks)),
        few if few <= MAX_NAMES => format!("E-links {} only", names(&elinks)),
        many => format!("{many} of {} E-links: {}, ...", rows.len(), names(&elinks[..MAX_NAMES])),
    };
    let readings = |of: &dyn Fn(&Gap) -> u64| here.iter().map(|(.., gap)| of(gap)).sum::<u64>();
    let least = readings(&|gap| gap.missing);
    let most = readings(&|gap| gap.or.unwrap_or(gap.missing));
    let ended = here.iter().find(|(.., gap)| gap.kind != GapKind::Jump).map(|(.., gap)| gap.kind);
    let why = match ended {
        Some(GapKind::Fall) => "; or the counter was reset",
        Some(GapKind::Begin) => "; or the E-link began only then",
        Some(GapKind::End) => "; or the E-link ended there",
        _ => "",
    };
    match least == most {
        true => format!("{range} are missing on {which}: {least} in all"),
        false if least == 0 => format!("{range} may be missing on {which}: {most} in all{why}"),
        false => format!("{range} are missing on {which}: {least} or {most} in all{why}"),
    }
}
