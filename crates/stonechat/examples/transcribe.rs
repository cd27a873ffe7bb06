//! Prints the segments of a recording with their times: `transcribe [RECORDING [MODEL]]`.

use std::io::{Write, stdout};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let recording = args.next().unwrap_or("talk.mp3".into());
    let whisper = stonechat::Whisper::open(args.next().unwrap_or("base".into()))?;
    for segment in whisper.transcribe(recording) {
        let segment = segment?;
        writeln!(stdout(), "{:7.2} s {}", segment.start, segment.text.trim())?;
    }
    Ok(())
}
