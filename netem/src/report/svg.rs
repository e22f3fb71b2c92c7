//! The few shapes that the figures are made of, and what they share: colours, ticks, numbers on axes.

use std::fmt::Write;

/// Colours that people with any kind of colour vision tell apart (Okabe and Ito 2008), without their yellow, which is
/// hard to see on white.
pub(super) const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
];
/// Text and axes.
pub(super) const INK: &str = "#333";
/// Grid lines and what is not the point.
pub(super) const FAINT: &str = "#ddd";
/// Width of a letter of the labels in their size, about.
const LETTER: f64 = 0.56;

/// A figure in the making.
#[derive(Debug)]
pub(super) struct Svg {
    body: String,
    width: f64,
    height: f64,
    title: String,
}

/// Where a text is held.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64, title: &str) -> Self {
        Self {
            body: String::new(),
            width,
            height,
            title: title.to_owned(),
        }
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str, more: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.body,
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{stroke}" {more}/>"#
        );
    }

    /// Corner, width and height.
    pub(super) fn rect(&mut self, at: (f64, f64), size: (f64, f64), fill: &str, more: &str) {
        let ((x, y), (w, h)) = (at, size);
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}" fill="{fill}" {more}/>"#
        );
    }

    pub(super) fn text(
        &mut self,
        at: (f64, f64),
        anchor: Anchor,
        size: f64,
        fill: &str,
        text: &str,
    ) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let ((x, y), text) = (at, escaped(text));
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}" fill="{fill}">{text}</text>"#
        );
    }

    /// Turned by a quarter, for the name of a vertical axis.
    pub(super) fn upright(&mut self, at: (f64, f64), text: &str) {
        let ((x, y), text) = (at, escaped(text));
        let _ = writeln!(
            self.body,
            r#"<text transform="translate({x:.1} {y:.1}) rotate(-90)" text-anchor="middle" font-size="12" fill="{INK}">{text}</text>"#
        );
    }

    pub(super) fn path(&mut self, d: &str, more: &str) {
        let _ = writeln!(self.body, r#"<path d="{d}" {more}/>"#);
    }

    /// A letter in a disc.
    pub(super) fn badge(&mut self, at: (f64, f64), fill: &str, letter: char, title: &str) {
        let ((x, y), title) = (at, escaped(title));
        let _ = writeln!(
            self.body,
            r##"<g><title>{title}</title><circle cx="{x:.1}" cy="{y:.1}" r="7" fill="{fill}" stroke="#fff"/><text x="{x:.1}" y="{:.1}" text-anchor="middle" font-size="10" font-weight="bold" fill="#fff">{}</text></g>"##,
            y + 3.5,
            escaped(&letter.to_string())
        );
    }

    /// What is shown when one points there.
    pub(super) fn hover(&mut self, text: &str, draw: impl FnOnce(&mut Self)) {
        let _ = writeln!(self.body, "<g><title>{}</title>", escaped(text));
        draw(self);
        self.body.push_str("</g>\n");
    }

    /// The whole file.
    pub(super) fn finish(self) -> String {
        let (width, height, title) = (self.width, self.height, escaped(&self.title));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" role=\"img\" font-family=\"system-ui, 'Helvetica Neue', Arial, sans-serif\">\n\
             <title>{title}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}</svg>\n",
            self.body
        )
    }
}

/// For the inside of an element or of an attribute.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

/// About how wide a text is.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * LETTER
}

/// Some `n` round numbers from `low` to `high`.
pub(super) fn ticks(low: f64, high: f64, n: usize) -> Vec<f64> {
    let span = high - low;
    if span <= 0.0 || !span.is_finite() {
        return vec![low];
    }
    let rough = span / n.max(1) as f64;
    let power = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let step = steps
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    let first = (low / step).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|k| k as f64 * step).collect()
}

/// A number on an axis whose ticks are so far apart.
pub(super) fn tick_text(value: f64, step: f64) -> String {
    let digits = (-step.abs().max(1e-12).log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(0.0, 100.0, 5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(0.13, 0.9, 4), [0.2, 0.4, 0.6000000000000001, 0.8]);
        assert_eq!(ticks(3.0, 3.0, 4), [3.0]);
        assert_eq!(tick_text(0.6000000000000001, 0.2), "0.6");
        assert_eq!(tick_text(40.0, 20.0), "40");
    }

    #[test]
    fn a_text_cannot_end_its_element() {
        assert_eq!(escaped("<b a=\"1\">&\n"), "&lt;b a=&quot;1&quot;&gt;&amp; ");
    }
}
