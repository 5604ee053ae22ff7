//! Plots as inline SVG: lines with a mark at every step and axes with units. The page's colour
//! variables provide a light and a dark scheme.
//!
//! There is no script: the `<title>` of a mark shows its values when the pointer hovers over it.

use std::fmt::Write;

use super::points::short;

/// The size of a plot, in the units of its `viewBox`.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 340.0;
/// Margins for the axes' labels.
const LEFT: f64 = 84.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 18.0;
const BOTTOM: f64 = 54.0;

/// One line of a plot.
pub(super) struct PlotLine<'a> {
    /// The line's name, and its CSS class, which determines its colour.
    pub(super) name: &'a str,
    pub(super) class: &'a str,
    /// The points, from left to right.
    pub(super) points: Vec<(f64, f64)>,
}

pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    /// The labels of the axes, with units.
    pub(super) across: &'a str,
    pub(super) up: &'a str,
    /// The unit of a single value, for the title of a mark.
    pub(super) unit: &'a str,
    pub(super) lines: Vec<PlotLine<'a>>,
    /// Whether the vertical axis is logarithmic.
    pub(super) logarithmic: bool,
    /// The minimum upper end of the vertical axis.
    pub(super) up_to: f64,
    pub(super) mark: Option<f64>,
}

struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    begin: f64,
    end: f64,
}

impl Scale {
    fn place(&self, value: f64) -> f64 {
        let part = if self.logarithmic {
            (value.max(self.low) / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.begin + (self.end - self.begin) * part.clamp(0.0, 1.0)
    }

    /// Round values within the scale, for grid lines.
    fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            return decades(self.low, self.high);
        }
        let step = round_step((self.high - self.low) / 6.0);
        let first = (self.low / step).ceil();
        let count = ((self.high / step).floor() - first).max(0.0) as usize;
        (0..=count)
            .map(|place| (first + place as f64) * step)
            .collect()
    }
}

/// The smallest 1, 2 or 5 times a power of ten that is at least `step`.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.max(1e-12).log10().floor());
    let factor = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|factor| factor * power >= step * 0.999_999);
    factor.unwrap_or(10.0) * power
}

/// Powers of ten from `low` to `high`. For up to three decades also their doubles and quintuples.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let factors: &[f64] = if last - first <= 3 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    let all = (first..=last).flat_map(|power| {
        factors
            .iter()
            .map(move |factor| factor * 10_f64.powi(power))
    });
    all.filter(|tick| (low * 0.999..=high * 1.001).contains(tick))
        .collect()
}

impl Plot<'_> {
    /// The plot as an HTML `figure` element.
    pub(super) fn html(&self) -> String {
        let (across, up) = self.scales();
        let mut svg = String::new();
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            "<figure>\n<figcaption>{}{}</figcaption>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}: {} \
             against {}\">\n",
            self.title,
            self.legend(),
            self.title,
            self.up,
            self.across
        );
        self.grid(&mut svg, &across, &up);
        for line in &self.lines {
            self.line(&mut svg, line, &across, &up);
        }
        svg.push_str("</svg>\n</figure>\n");
        svg
    }

    fn scales(&self) -> (Scale, Scale) {
        let all = || self.lines.iter().flat_map(|line| &line.points);
        let (first, last) = (
            all().map(|point| point.0).fold(f64::INFINITY, f64::min),
            all().map(|point| point.0).fold(0.0, f64::max),
        );
        // Without steps, only the axes are drawn.
        let first = if first.is_finite() { first } else { 0.0 };
        let highest = all().map(|point| point.1).fold(self.up_to, f64::max);
        // If all values are zero, any scale will do.
        let highest = if highest > 0.0 { highest } else { 1.0 };
        let lowest = all()
            .map(|point| point.1)
            .filter(|value| *value > 0.0)
            .fold(highest, f64::min);
        let across = Scale {
            // A single step is placed in the middle.
            low: if first < last { 0.0 } else { first - 1.0 },
            high: if first < last { last } else { first + 1.0 },
            logarithmic: false,
            begin: LEFT,
            end: WIDTH - RIGHT,
        };
        let across = if self.spreads() {
            Scale {
                low: first,
                logarithmic: true,
                ..across
            }
        } else {
            across
        };
        let step = round_step(highest / 6.0);
        let up = Scale {
            low: if self.logarithmic {
                10_f64.powf(lowest.max(1e-6).log10().floor())
            } else {
                0.0
            },
            high: if self.logarithmic {
                10_f64.powf((highest.max(1e-6) * 1.001).log10().ceil())
            } else {
                (highest * 1.02 / step).ceil() * step
            },
            logarithmic: self.logarithmic,
            begin: HEIGHT - BOTTOM,
            end: TOP,
        };
        (across, up)
    }

    /// Whether the steps grow geometrically, so that a linear axis would push most of them to the
    /// left.
    fn spreads(&self) -> bool {
        let Some(line) = self.lines.first() else {
            return false;
        };
        let middle = line.points.get(line.points.len() / 2);
        match (line.points.first(), middle, line.points.last()) {
            (Some(first), Some(middle), Some(last)) => {
                first.0 > 0.0 && last.0 / first.0 >= 16.0 && middle.0 * 3.0 < last.0
            }
            _ => false,
        }
    }

    fn legend(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let _ = write!(
                text,
                " <span class=\"key {}\"><svg viewBox=\"0 0 28 10\" width=\"28\" height=\"10\" aria-hidden=\"true\"><path \
                 d=\"M1 5H27\"/><circle cx=\"14\" cy=\"5\" r=\"3\"/></svg>{}</span>",
                line.class, line.name
            );
        }
        if self.mark.is_some() {
            text.push_str(
                " <span class=\"key mark\"><svg viewBox=\"0 0 28 10\" width=\"28\" height=\"10\" aria-hidden=\"true\"><path \
                 d=\"M1 5H27\"/></svg>saturation</span>",
            );
        }
        text
    }

    fn grid(&self, svg: &mut String, across: &Scale, up: &Scale) {
        let (left, right, top, bottom) = (LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM);
        for tick in up.ticks() {
            let y = up.place(tick);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{left} {y:.1}H{right}\"/><text class=\"up\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                left - 8.0,
                y + 4.0,
                label(tick)
            );
        }
        for tick in across.ticks() {
            let x = across.place(tick);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{x:.1} {top}V{bottom}\"/><text class=\"across\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                bottom + 18.0,
                label(tick)
            );
        }
        if let Some(mark) = self.mark {
            let x = across.place(mark);
            let _ = writeln!(
                svg,
                "<path class=\"mark\" d=\"M{x:.1} {top}V{bottom}\"><title>saturation: {}</title></path>",
                short(mark)
            );
        }
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{left} {top}V{bottom}H{right}\"/>\n<text class=\"across\" x=\"{:.1}\" \
             y=\"{:.1}\">{}</text>\n<text class=\"across\" transform=\"translate(16 {:.1}) rotate(-90)\">{}</text>",
            (left + right) / 2.0,
            HEIGHT - 10.0,
            self.across,
            (top + bottom) / 2.0,
            self.up
        );
    }

    fn line(&self, svg: &mut String, line: &PlotLine, across: &Scale, up: &Scale) {
        let places: Vec<String> = line
            .points
            .iter()
            .map(|(x, y)| format!("{:.1} {:.1}", across.place(*x), up.place(*y)))
            .collect();
        let _ = writeln!(
            svg,
            "<g class=\"{}\"><path class=\"line\" d=\"M{}\"/>",
            line.class,
            places.join("L")
        );
        for (x, y) in &line.points {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"><title>{} at {}: {}{}</title></circle>",
                across.place(*x),
                up.place(*y),
                line.name,
                short(*x),
                short(*y),
                self.unit
            );
        }
        svg.push_str("</g>\n");
    }
}

/// The label of a tick, with spaces between thousands.
fn label(value: f64) -> String {
    if value < 1000.0 {
        // Ticks are round numbers; this cuts off rounding errors of floating point.
        let text = format!("{value:.6}");
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(low: f64, high: f64, logarithmic: bool) -> Scale {
        Scale {
            low,
            high,
            logarithmic,
            begin: 0.0,
            end: 100.0,
        }
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(
            scale(0.0, 280.0, false).ticks(),
            [0.0, 50.0, 100.0, 150.0, 200.0, 250.0]
        );
        assert_eq!(scale(0.1, 10.0, true).ticks().len(), 7);
        assert_eq!(scale(1.0, 100_000.0, true).ticks().len(), 6);
        assert_eq!(
            [0.1, 5.0, 12_345.0].map(label),
            ["0.1", "5", "12\u{202f}345"]
        );
    }

    #[test]
    fn places_lie_within_the_scale() {
        let linear = scale(0.0, 10.0, false);
        assert_eq!(
            [0.0, 5.0, 10.0, 99.0].map(|value| linear.place(value)),
            [0.0, 50.0, 100.0, 100.0]
        );
        let logarithmic = scale(1.0, 100.0, true);
        assert_eq!(
            [0.0, 1.0, 10.0, 100.0].map(|value| logarithmic.place(value)),
            [0.0, 0.0, 50.0, 100.0]
        );
    }

    #[test]
    fn every_plot_is_a_plot() {
        for (points, logarithmic) in [
            (vec![], true),
            (vec![(1.0, 0.0)], true),
            (vec![(1.0, 0.0), (2.0, 0.0)], false),
            (vec![(1.0, 5.0), (1000.0, 0.0)], true),
            (vec![(1.0, 5.0), (1000.0, 0.0)], false),
        ] {
            let plot = Plot {
                title: "title",
                across: "connections",
                up: "requests/s",
                unit: "/s",
                lines: vec![PlotLine {
                    name: "name",
                    class: "one",
                    points,
                }],
                logarithmic,
                up_to: 0.0,
                mark: Some(1.0),
            };
            let html = plot.html();
            assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
            assert!(html.contains(">connections</text>") && html.contains(">requests/s</text>"));
            let ticks = html.matches("class=\"up\"").count();
            assert!((2..=12).contains(&ticks), "{html}");
        }
    }
}
