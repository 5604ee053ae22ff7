//! A sweep as a self-contained HTML page: findings, plots, the table, and the conditions of the
//! run.

use std::fmt::Write;
use std::time::Duration;

use super::plot::{Plot, PlotLine};
use super::points::{Axis, Findings, Point, sentences};
use super::table;

/// A light and a dark colour scheme. Lines differ in lightness as well as in hue.
const STYLE: &str = "\
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--soft:#59636e;--grid:#e3e7eb;--axis:#8b949e;
--one:#0b62c4;--two:#b85400;--three:#b3261e;--four:#7a3db8;--mark:#4a7a2c}
@media(prefers-color-scheme:dark){:root{--back:#14181d;--text:#e6e9ed;--soft:#9aa4af;--grid:#2a3138;--axis:#6b7580;
--one:#6cb0ff;--two:#ffa657;--three:#ff8a80;--four:#cda2ff;--mark:#8fce6a}}
body{margin:2rem auto;max-width:60rem;padding:0 1rem;font:16px/1.5 system-ui,sans-serif;background:var(--back);color:var(--text)}
h1{font-size:1.5rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
.soft{color:var(--soft);overflow-wrap:anywhere}
figure{margin:1.5rem 0}figcaption{font-weight:600;margin:0 0 .25rem}
figure{overflow-x:auto}figure>svg{width:100%;min-width:36rem;height:auto;display:block}
svg text{font:13px system-ui,sans-serif;fill:var(--soft)}text.across{text-anchor:middle}text.up{text-anchor:end}
svg path{fill:none}path.grid{stroke:var(--grid)}path.axis{stroke:var(--axis)}path.mark,.mark path{stroke:var(--mark);stroke-width:2;stroke-dasharray:6 4}
.one{--line:var(--one)}.two{--line:var(--two)}.three{--line:var(--three)}.four{--line:var(--four)}
g path,.key path{stroke:var(--line);stroke-width:2}.key.mark path{stroke:var(--mark)}
.two path,.four path{stroke-dasharray:2 3}
circle{fill:var(--line)}
.key{font-weight:400;font-size:.875rem;margin-left:.75rem;white-space:nowrap}.key svg{vertical-align:middle;margin-right:.25rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .75rem;text-align:right;border-bottom:1px solid var(--grid)}th{font-weight:600}
tr.found td{font-weight:600;border-bottom-color:var(--mark)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
";

/// The data of a page.
pub(super) struct Page<'a> {
    pub(super) axis: Axis,
    pub(super) points: &'a [Point],
    pub(super) findings: &'a Findings,
    /// The time limit of goodput.
    pub(super) within: Duration,
    pub(super) urls: &'a [String],
    pub(super) conditions: &'a [(String, String)],
}

impl Page<'_> {
    pub(super) fn html(&self) -> String {
        let mut html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
             content=\"width=device-width,initial-scale=1\">\n<title>Sweep of {0}</title>\n<style>\n{STYLE}</style>\n</head>\n\
             <body>\n<h1>Load sweep</h1>\n<p class=\"soft\">{0}</p>\n",
            escaped(&self.urls.join(" "))
        );
        // Writing to a string cannot fail.
        for sentence in sentences(self.axis, self.points, self.within) {
            let sentence = escaped(&sentence).replace(" %", "&nbsp;%");
            let _ = writeln!(html, "<p>{sentence}</p>");
        }
        for plot in self.plots() {
            html.push_str(&plot.html());
        }
        self.table(&mut html);
        html.push_str("<h2>Conditions</h2>\n<dl>\n");
        for (name, value) in self.conditions {
            let _ = writeln!(
                html,
                "<dt>{}</dt><dd>{}</dd>",
                escaped(name),
                escaped(value)
            );
        }
        html.push_str("</dl>\n</body>\n</html>\n");
        html
    }

    fn plots(&self) -> [Plot<'_>; 3] {
        let line = |name, class, value: fn(&Point) -> Option<f64>| PlotLine {
            name,
            class,
            points: self
                .points
                .iter()
                .filter_map(|point| Some((point.load, value(point)?)))
                .collect(),
        };
        let mark = self
            .findings
            .saturation
            .and_then(|place| self.points.get(place));
        let plot = |title, up, unit, lines| Plot {
            title,
            across: self.axis.words(),
            up,
            unit,
            lines,
            logarithmic: false,
            up_to: 0.0,
            mark: mark.map(|point| point.load),
        };
        let throughput = plot(
            "Throughput",
            "responses as expected, 1/s",
            "/s",
            vec![
                line("throughput", "one", |point| Some(point.throughput)),
                line("goodput", "two", |point| Some(point.goodput)),
            ],
        );
        let times = plot(
            "Response time",
            "time, ms (logarithmic)",
            " ms",
            vec![
                line("p50", "one", |point| point.p50),
                line("p99", "two", |point| point.p99),
            ],
        );
        let shares = plot(
            "Failed and refused",
            "share of requests, %",
            " %",
            vec![
                line("failed", "three", |point| Some(point.failed * 100.0)),
                line("refused", "four", |point| Some(point.refused * 100.0)),
            ],
        );
        [
            throughput,
            Plot {
                logarithmic: true,
                ..times
            },
            Plot {
                // A minimum scale, so that a tenth of a per cent does not fill the plot.
                up_to: 5.0,
                ..shares
            },
        ]
    }

    fn table(&self, html: &mut String) {
        html.push_str("<h2>Steps</h2>\n<div class=\"wide\"><table>\n<tr>");
        for name in table::names(self.axis) {
            let _ = write!(html, "<th scope=\"col\">{}</th>", escaped(&name));
        }
        html.push_str("</tr>\n");
        for (place, point) in self.points.iter().enumerate() {
            let found = self.findings.saturation == Some(place);
            html.push_str(if found {
                "<tr class=\"found\">"
            } else {
                "<tr>"
            });
            for value in table::row(point) {
                let _ = write!(html, "<td>{}</td>", escaped(&value));
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</table></div>\n");
        if let Some(point) = self.points.iter().find(|point| !point.limits.is_empty()) {
            let _ = writeln!(
                html,
                "<p class=\"soft\">* the tool was the limit, at {} for instance: {}</p>",
                self.axis.at(point.load),
                escaped(&point.limits.join("; "))
            );
        }
    }
}

/// Escapes text for HTML.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            character => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::points::findings;
    use super::*;

    #[test]
    fn what_comes_from_outside_stays_text() {
        let page = Page {
            axis: Axis::Connections,
            points: &[Point {
                load: 1.0,
                limits: vec!["<b>".to_owned()],
                ..Point::default()
            }],
            findings: &Findings::default(),
            within: Duration::from_secs(1),
            urls: &["http://h/<script>&".to_owned()],
            conditions: &[("<i>".to_owned(), "\"".to_owned())],
        };
        let html = page.html();
        assert!(!html.contains("<script") && !html.contains("<b>") && !html.contains("<i>"));
        assert!(html.contains("http://h/&lt;script&gt;&amp;") && html.contains("<dd>&quot;</dd>"));
        // The page loads nothing from elsewhere.
        for outside in ["src=", "href=", "url(", "@import"] {
            assert!(!html.contains(outside), "{outside}");
        }
        assert!(html.contains("at 1 connection for instance"));
    }

    fn page_of(throughputs: &[f64]) -> String {
        let point = |(place, throughput): (usize, &f64)| Point {
            load: (place + 1) as f64,
            throughput: *throughput,
            // The first step has too few responses for percentiles.
            p50: (place > 0).then_some(1.0),
            p99: (place > 0).then_some(2.0),
            ..Point::default()
        };
        let points: Vec<Point> = throughputs.iter().enumerate().map(point).collect();
        let page = Page {
            axis: Axis::Connections,
            points: &points,
            findings: &findings(Axis::Connections, &points),
            within: Duration::from_secs(1),
            urls: &[],
            conditions: &[],
        };
        page.html()
    }

    #[test]
    fn a_page_of_steps_that_scatter_marks_none_of_them() {
        let marks = |html: &str| {
            [
                "<p>The steps scatter too much to name saturation: ",
                "<p>Saturation at 2 connections: ",
                "<path class=\"mark\"",
                "</svg>saturation</span>",
                "<tr class=\"found\">",
            ]
            .map(|mark| html.matches(mark).count())
        };
        let clean = page_of(&[100.0, 200.0, 199.0, 201.0, 200.0]);
        assert_eq!(marks(&clean), [0, 1, 3, 3, 1], "{clean}");
        let scattered = page_of(&[100.0, 200.0, 120.0, 205.0, 110.0, 200.0]);
        assert_eq!(marks(&scattered), [1, 0, 0, 0, 0], "{scattered}");
        // Five steps and six lines, without the two missing percentiles.
        assert_eq!(clean.matches("r=\"3\"><title>").count(), 28);
        assert!(clean.contains("<td>-</td><td>-</td></tr>"), "{clean}");
    }
}
