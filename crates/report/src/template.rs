//! Templates of the page and its pictures.

use daqmeter_record::sanitise;
use minijinja::{AutoEscape, Environment, Value, escape_formatter};
use serde::Serialize;

/// Fills a template. Text is escaped, and marks of direction are shown.
pub(crate) fn rendered(name: &str, template: &str, values: Value) -> String {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_formatter(|out, state, value| match value.as_str() {
        Some(text) if !value.is_safe() => {
            escape_formatter(out, state, &sanitise::lines(text).as_ref().into())
        }
        _ => escape_formatter(out, state, value),
    });
    environment.add_filter("kebab", |text: Value| text.to_string().replace(' ', "-"));
    environment.add_filter("whole", |number: f64| format!("{number:.0}"));
    environment.add_filter("thousandths", |number: f64| format!("{number:.3}"));
    environment.render_named_str(name, template, values).expect("tests fill every template")
}

pub(crate) fn serde<T: Serialize>(value: T) -> Value {
    Value::from(minijinja::value::Serde(value))
}
