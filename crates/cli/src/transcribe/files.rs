//! Arguments about files: which results, where they go, what is heard of each.

use std::path::PathBuf;
use std::str::FromStr;

use stonechat::audio::Channels;

/// Arguments that say what is read and written.
#[derive(Debug, clap::Args)]
pub(super) struct FileArgs {
    /// txt, srt, vtt, tsv, json, json-full, lrc, csv, or all for the first five; several separated by commas [default: txt]
    #[arg(short = 'f', long, value_name = "FORMAT", value_delimiter = ',')]
    pub(super) output_format: Vec<String>,
    /// Folder for the results, - for standard output [default: beside each input; standard output for a single one without a format]
    #[arg(short, long, value_name = "FOLDER")]
    pub(super) output_dir: Option<PathBuf>,
    /// Name of the results of a single input, without their ending
    #[arg(long, value_name = "FILE", conflicts_with = "output_dir")]
    pub(super) output_file: Option<PathBuf>,
    /// Transcribe inputs again that have results newer than they are
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Inputs transcribed at the same time; they share the weights and divide the threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) jobs: usize,
    /// Write what became of each input to this file as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    pub(super) summary: Option<PathBuf>,
    /// Draw no progress bar
    #[arg(long)]
    pub(super) no_progress: bool,
    /// Channels: mix, split (each by itself; segments say which) or the number of one, from 1
    #[arg(long, value_name = "WHICH", default_value = "mix")]
    pub(super) channels: ChannelsArg,
    /// Hear only from one time to the next: seconds in pairs, the last may have no end
    #[arg(long, value_name = "S,S,...", value_delimiter = ',')]
    pub(super) clip_timestamps: Vec<f64>,
    /// Hear from this time on
    #[arg(long, value_name = "MS", conflicts_with = "clip_timestamps")]
    pub(super) offset_t: Option<u32>,
    /// Hear no more than this
    #[arg(long, value_name = "MS", conflicts_with = "clip_timestamps")]
    pub(super) duration: Option<u32>,
}

/// Values of `--channels`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChannelsArg(pub(super) Channels);

impl FromStr for ChannelsArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "mix" => Ok(Self(Channels::Mix)),
            "split" => Ok(Self(Channels::Each)),
            _ => match text.parse() {
                Ok(number) if number > 0 => Ok(Self(Channels::One(number))),
                _ => Err("expected mix, split or the number of a channel, from 1".to_owned()),
            },
        }
    }
}

impl FileArgs {
    /// What is heard, as `Options` have it.
    pub(super) fn clips(&self) -> Vec<f64> {
        let seconds = |ms: u32| f64::from(ms) / 1000.0;
        match (self.offset_t, self.duration) {
            (None, None) => self.clip_timestamps.clone(),
            (from, length) => {
                let from = from.map_or(0.0, seconds);
                let end = length.filter(|&ms| ms > 0).map(|ms| from + seconds(ms));
                [Some(from), end].into_iter().flatten().collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use stonechat::audio::Channels;

    use super::ChannelsArg;

    #[test]
    fn channels_have_names_and_numbers() {
        assert_eq!("mix".parse(), Ok(ChannelsArg(Channels::Mix)));
        assert_eq!("split".parse(), Ok(ChannelsArg(Channels::Each)));
        assert_eq!("2".parse(), Ok(ChannelsArg(Channels::One(2))));
        for wrong in ["0", "-1", "left", "99999", ""] {
            assert!(wrong.parse::<ChannelsArg>().is_err(), "{wrong}");
        }
    }
}
