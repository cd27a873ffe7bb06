//! Writes subtitles beside a video, in batches of windows: `subtitles [VIDEO [MODEL]]`.
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::fs::File;
use std::path::Path;

use stonechat::whisper::{OutputFormat, SubtitleLayout};
use stonechat::{Recording, Whisper};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let video = args.next().unwrap_or("talk.mp4".into());
    let whisper = Whisper::open(args.next().unwrap_or("base".into()))?;

    let recording = Recording::file(&video).word_timestamps().batch_size(8);
    let transcript = whisper.transcribe(recording).wait()?;

    let path = Path::new(&video).with_extension("srt");
    let layout = SubtitleLayout { max_line_width: Some(42), ..SubtitleLayout::default() };
    let mut file = File::create(&path)?;
    OutputFormat::Srt.write(&mut file, &transcript, layout)?;
    println!("{} segments in {}", transcript.segments.len(), path.display());
    Ok(())
}
