//! Summaries of a comparison for other programs: Markdown for people in a browser, JUnit for
//! servers that run jobs (Jenkins, GitLab).

use std::fmt::Write;

use daqmeter_record::sanitise;
use daqmeter_record::units::show_ns;
use minijinja::context;

use crate::cmp::{Compared, ComparedPoint, PointVerdict};
use crate::template::rendered;

/// Writes the answer, and a table of all points with their bounds.
pub fn markdown(found: &Compared) -> String {
    let mut out = format!("# daqmeter nightly\n\n{}\n\n", found.answer());
    out += "| point | before | tonight | answer |\n|---|--:|--:|---|\n";
    for point in &found.points {
        let (a, b) = (show_ns(point.a_ns), show_ns(point.b_ns));
        let [name, said] = [&point.point, &point.said()].map(|text| sanitise::markdown(text));
        let _ = writeln!(out, "| {name} | {a} | {b} | {said} |");
    }
    out.extend(found.broken.iter().map(|why| format!("\nbroken: {}\n", sanitise::markdown(why))));
    out
}

/// Writes a test case for each point. It fails where the point is slower by that fraction, or by
/// any without one; it is skipped where the point is not comparable.
pub fn junit(found: &Compared, fail_on: Option<f64>) -> String {
    let by = fail_on.unwrap_or(0.0);
    let is_failure = |point: &ComparedPoint| point.is_slower_by(by);
    let is_skipped = |point: &ComparedPoint| point.verdict == PointVerdict::NotComparable;
    let cases = found.points.iter().map(|point| {
        let (is_failure, is_skipped) = (is_failure(point), is_skipped(point));
        context! { name => point.point.clone(), said => point.said(), is_failure, is_skipped }
    });
    let broken = found.broken.iter();
    let broken =
        broken.map(|why| context! { name => why.clone(), said => why.clone(), is_failure => true });
    let count =
        |is: &dyn Fn(&ComparedPoint) -> bool| found.points.iter().filter(|it| is(it)).count();
    let values = context! {
        points => found.points.len() + found.broken.len(),
        cases => cases.chain(broken).collect::<Vec<_>>(),
        failures => count(&is_failure) + found.broken.len(),
        skipped => count(&is_skipped),
    };
    rendered("junit.xml", include_str!("../assets/junit.xml"), values) + "\n"
}
