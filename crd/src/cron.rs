//! Cron expressions of five fields, in a time zone.
//!
//! The fields are read here, strictly and with a message for each mistake; which times they mean is known by `croner`:
//! around a change of daylight saving time it does as Vixie's cron does.

use std::str::FromStr;

use croner::parser::{CronParser, Seconds, Year};
use jiff::{
    Timestamp,
    tz::{self, TimeZone, TimeZoneDatabase},
};

use crate::yaml::nearest;

/// Maximum number of characters of an expression.
pub const LONGEST: usize = 256;

/// The names of expressions.
const NAMED: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];
const DAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// The most days that each month can have.
const MONTH_LENGTHS: [u8; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// One of the five fields.
struct Field {
    name: &'static str,
    first: u8,
    last: u8,
    /// Names that stand for the numbers from the first on.
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field::of("minute", (0, 59), &[]),
    Field::of("hour", (0, 23), &[]),
    Field::of("day of month", (1, 31), &[]),
    Field::of("month", (1, 12), &MONTHS),
    Field::of("day of week", (0, 7), &DAYS),
];

/// A cron expression.
#[derive(Debug, Clone)]
pub struct Cron(croner::Cron);

/// Why a text is no cron expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CronError(String);

impl FromStr for Cron {
    type Err = CronError;

    fn from_str(text: &str) -> Result<Self, CronError> {
        let named = NAMED.iter().find(|(name, _)| *name == text);
        let text = named.map_or(text, |(_, meaning)| meaning);
        if text.starts_with('@') {
            let known: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
            let known = known.join(", ");
            return Err(CronError(format!(
                "{text:?} is unknown; use {known}, or five fields"
            )));
        }
        check(text).map_err(CronError)?;
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .build();
        let parsed = parser.parse(text);
        parsed
            .map(Self)
            .map_err(|error| CronError(error.to_string()))
    }
}

impl Cron {
    /// The first slot after this time.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let after = after.to_zoned(zone.clone());
        let found = self.0.find_next_occurrence(&after, false);
        found.ok().map(|slot| slot.timestamp())
    }

    /// The last slot that is not after this time.
    pub fn last(&self, until: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        // Slots are whole minutes, and the search is exact for whole seconds only.
        let until = Timestamp::from_second(until.as_second()).unwrap_or(until);
        let until = until.to_zoned(zone.clone());
        let found = self.0.find_previous_occurrence(&until, true);
        found.ok().map(|slot| slot.timestamp())
    }
}

/// A time zone of the IANA database: the host's, which its distribution keeps up to date, or the one in this program.
pub fn time_zone(name: &str) -> Option<TimeZone> {
    let found = tz::db().get(name);
    let found = found.or_else(|_| TimeZoneDatabase::bundled().get(name));
    found.ok()
}

/// The time zone whose name is most like one that there is not.
pub fn nearest_time_zone(name: &str) -> Option<String> {
    let known: Vec<String> = tz::db().available().map(|zone| zone.to_string()).collect();
    let bundled = TimeZoneDatabase::bundled();
    let bundled: Vec<String> = bundled.available().map(|zone| zone.to_string()).collect();
    let known = known.iter().chain(&bundled).map(String::as_str);
    nearest(name, known).map(str::to_owned)
}

/// The regular expression of the schema: the form alone, so that a server's refusal of anything else can be read.
pub(crate) const PATTERN: &str = "^(@(annually|daily|hourly|midnight|monthly|weekly|yearly)|\
    ([0-9*,/-]+ +){3}[0-9A-Za-z*,/-]+ +[0-9A-Za-z*,/-]+)$";

impl Field {
    const fn of(
        name: &'static str,
        (first, last): (u8, u8),
        names: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            first,
            last,
            names,
        }
    }

    fn number(text: &str) -> Option<u8> {
        let is_number = (1..=2).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| text.parse().ok()).flatten()
    }

    fn value(&self, text: &str) -> Result<u8, String> {
        let named = self.names.iter().zip(self.first..);
        let mut named = named.filter(|(name, _)| name.eq_ignore_ascii_case(text));
        let value = named
            .next()
            .map(|(_, value)| value)
            .or(Self::number(text))
            .filter(|value| (self.first..=self.last).contains(value));
        value.ok_or_else(|| {
            let words = match (self.names.first(), self.names.last()) {
                (Some(first), Some(last)) => format!(" or {first} to {last}"),
                _ => String::new(),
            };
            let Self {
                name, first, last, ..
            } = self;
            format!("{name}: {text:?} is not {first} to {last}{words}")
        })
    }

    /// The values that a field means; empty for every value.
    fn values(&self, text: &str) -> Result<Vec<u8>, String> {
        let mut values = Vec::new();
        for item in text.split(',') {
            let (range, step) = match item.split_once('/') {
                Some((range, step)) => (range, Some(step)),
                None => (item, None),
            };
            let (from, to) = match (range, range.split_once('-')) {
                ("*", _) => (self.first, self.last),
                (_, Some((from, to))) => (self.value(from)?, self.value(to)?),
                (one, None) => {
                    let one = self.value(one)?;
                    if step.is_some() {
                        let name = self.name;
                        return Err(format!(
                            "{name}: {item:?} has a step without a range; write {range}-{last}/{step}",
                            last = self.last,
                            step = step.unwrap_or_default(),
                        ));
                    }
                    (one, one)
                }
            };
            if from > to {
                return Err(format!(
                    "{}: {range:?} ends before it begins; write two ranges with a comma",
                    self.name
                ));
            }
            let largest = self.last;
            let step = match step {
                None => 1,
                Some(step) => Self::number(step)
                    .filter(|step| (1..=largest).contains(step))
                    .ok_or_else(|| format!("{}: step {step:?} is not 1 to {largest}", self.name))?,
            };
            values.extend((from..=to).step_by(usize::from(step)));
        }
        Ok(values)
    }
}

/// Checks an expression of five fields; returns what is wrong and what is right.
fn check(text: &str) -> Result<(), String> {
    let texts: Vec<&str> = text.split(' ').filter(|part| !part.is_empty()).collect();
    let is_bare = text.starts_with(' ') || text.ends_with(' ');
    let [minute, hour, day, month, weekday] = texts.as_slice() else {
        return Err(format!(
            "{text:?} has {} fields; write five: minute, hour, day of month, month, day of week, such as \"30 2 * * *\"",
            texts.len()
        ));
    };
    if is_bare || text.len() > LONGEST {
        return Err(format!(
            "must have at most {LONGEST} characters, and no space at its ends"
        ));
    }
    let mut all = Vec::new();
    for (field, text) in FIELDS.iter().zip([minute, hour, day, month, weekday]) {
        all.push(field.values(text)?);
    }
    let is_every_weekday = weekday.starts_with('*');
    if let ([_, _, days, months, _], true) = (all.as_slice(), is_every_weekday) {
        let has = |month: &u8| {
            let length = MONTH_LENGTHS.get(usize::from(*month).saturating_sub(1));
            length.is_some_and(|length| days.iter().any(|day| day <= length))
        };
        if !months.iter().any(has) {
            return Err(format!("day of month: no month of {month:?} has day {day}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(text: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
        let cron: Cron = text.parse().unwrap();
        let zone = time_zone(zone).unwrap();
        let mut at: Timestamp = from.parse().unwrap();
        let mut found = Vec::new();
        while found.len() < count {
            at = cron.next(at, &zone).unwrap();
            assert_eq!(cron.last(at, &zone), Some(at), "{text} {at}");
            found.push(at.to_string());
        }
        found
    }

    #[test]
    fn every_name_and_every_form_of_a_field_is_read() {
        for text in [
            "@hourly",
            "@daily",
            "@midnight",
            "@weekly",
            "@monthly",
            "@yearly",
            "@annually",
            "* * * * *",
            "*/15 0-6,20-23 1,15 jan-Mar MON-fri",
            "0 0 * * 7",
            "0 0 29 2 *",
            "0 0 31 2 1",
            "05 07 09 01 0",
            "0  0   1 * *",
            "10-50/20 */2 */31 */12 */7",
        ] {
            let cron: Result<Cron, _> = text.parse();
            let cron = cron.unwrap_or_else(|error| panic!("{text}: {error}"));
            let now = Timestamp::UNIX_EPOCH;
            assert!(cron.next(now, &TimeZone::UTC).is_some(), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_the_field_and_what_is_allowed() {
        for (text, wanted) in [
            ("", "has 0 fields"),
            ("0 2 * *", "has 4 fields; write five: minute"),
            ("0 0 2 * * *", "has 6 fields"),
            ("60 2 * * *", "minute: \"60\" is not 0 to 59"),
            ("0 24 * * *", "hour: \"24\" is not 0 to 23"),
            ("0 2 0 * *", "day of month: \"0\" is not 1 to 31"),
            ("0 2 * 13 *", "month: \"13\" is not 1 to 12 or JAN to DEC"),
            (
                "0 2 * * FUN",
                "day of week: \"FUN\" is not 0 to 7 or SUN to SAT",
            ),
            ("0 2 * * FRI-MON", "ends before it begins"),
            ("*/0 * * * *", "minute: step \"0\" is not 1 to 59"),
            ("5/10 * * * *", "write 5-59/10"),
            ("0 0 30 2 *", "no month of \"2\" has day 30"),
            ("0 0 31 4,6 *", "no month"),
            ("0 0 L * *", "day of month: \"L\""),
            ("0 0 * * 5#2", "day of week: \"5#2\""),
            ("0 0 ? * *", "day of month: \"?\""),
            ("@reboot", "\"@reboot\" is unknown; use @hourly, @daily"),
            (" 0 2 * * *", "no space at its ends"),
            ("0 +2 * * *", "hour: \"+2\""),
        ] {
            let error = text.parse::<Cron>().unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn a_time_that_daylight_saving_leaves_out_or_repeats_is_one_slot() {
        // 02:00 to 03:00 is not there on 28 March, and there twice on 31 October.
        let daily = slots("30 2 * * *", "Europe/Berlin", "2027-03-27T00:00:00Z", 3);
        let wanted = [
            "2027-03-27T01:30:00Z",
            "2027-03-28T01:00:00Z",
            "2027-03-29T00:30:00Z",
        ];
        assert_eq!(daily, wanted);
        let daily = slots("30 2 * * *", "Europe/Berlin", "2027-10-30T00:00:00Z", 3);
        let wanted = [
            "2027-10-30T00:30:00Z",
            "2027-10-31T00:30:00Z",
            "2027-11-01T01:30:00Z",
        ];
        assert_eq!(daily, wanted);
        let hourly = slots("@hourly", "Europe/Berlin", "2027-10-30T23:30:00Z", 4);
        assert_eq!(hourly.last().unwrap(), "2027-10-31T03:00:00Z");
    }

    #[test]
    fn time_zones_are_known_where_the_host_has_none() {
        for name in ["UTC", "Europe/Berlin", "US/Eastern", "Asia/Kathmandu"] {
            assert!(TimeZoneDatabase::bundled().get(name).is_ok(), "{name}");
            assert!(time_zone(name).is_some(), "{name}");
        }
        for name in ["", "Europe/Bonn", "../../etc/passwd", "/etc/localtime"] {
            assert!(time_zone(name).is_none(), "{name}");
        }
    }
}
