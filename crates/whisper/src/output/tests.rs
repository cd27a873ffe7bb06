use super::*;
use crate::transcript::Word;

fn segment(id: usize, start: f64, end: f64, text: &str) -> Segment {
    Segment {
        id,
        start,
        end,
        text: text.to_owned(),
        tokens: vec![50364, 400, 50414],
        token_texts: ["<|0.00|>", " a", "<|1.00|>"].map(str::to_owned).to_vec(),
        token_probabilities: vec![1.0, 0.5, 0.25],
        avg_logprob: -0.25,
        compression_ratio: 1.0,
        no_speech_prob: 0.01,
        ..Segment::default()
    }
}

fn transcript() -> Transcript {
    let segments = vec![
        segment(0, 0.0, 2.5, " Hello."),
        segment(1, 3661.04, 3662.0, " a --> b\tc & \"d\" <e>\nf"),
    ];
    Transcript {
        text: " Hello. …".to_owned(),
        segments,
        language: "en".to_owned(),
        duration: 3662.0,
        cancelled: false,
        has_failed: false,
    }
}

fn written(format: OutputFormat, transcript: &Transcript, layout: SubtitleLayout) -> String {
    let mut out = Vec::new();
    format.write(&mut out, transcript, layout).unwrap();
    String::from_utf8(out).unwrap()
}

#[track_caller]
fn check(format: OutputFormat, expected: &str) {
    assert_eq!(written(format, &transcript(), SubtitleLayout::default()), expected);
}

#[test]
fn text_formats() {
    check(OutputFormat::Txt, "Hello.\na --> b\tc & \"d\" <e> f\n");
    check(
        OutputFormat::Tsv,
        "start\tend\ttext\n0\t2500\tHello.\n3661040\t3662000\ta --> b c & \"d\" <e> f\n",
    );
    check(
        OutputFormat::Csv,
        "start,end,text\n0,2500,\"Hello.\"\n3661040,3662000,\"a --> b\tc & \"\"d\"\" <e> f\"\n",
    );
    check(OutputFormat::Lrc, "[00:00.00]Hello.\n[61:01.04]a --> b\tc & \"d\" <e> f\n");
    check(
        OutputFormat::Srt,
        "1\n00:00:00,000 --> 00:00:02,500\nHello.\n\n\
         2\n01:01:01,040 --> 01:01:02,000\na -> b\tc & \"d\" <e> f\n\n",
    );
    check(
        OutputFormat::Vtt,
        "WEBVTT\n\n00:00.000 --> 00:02.500\nHello.\n\n\
         01:01:01.040 --> 01:01:02.000\na -> b\tc &amp; \"d\" &lt;e> f\n\n",
    );
}

fn keys(value: &serde_json::Value) -> Vec<&str> {
    let mut keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn json_has_the_fields_of_openai_whisper() {
    let mut spoken = spoken();
    spoken.segments.push(segment(3, 11.0, 12.0, " x"));
    let text = written(OutputFormat::Json, &spoken, SubtitleLayout::default());
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(keys(&json), ["language", "segments", "text"]);
    let fields = [
        "avg_logprob",
        "compression_ratio",
        "end",
        "id",
        "no_speech_prob",
        "seek",
        "start",
        "temperature",
        "text",
        "tokens",
        "words",
    ];
    assert_eq!(keys(&json["segments"][0]), fields);
    assert_eq!(keys(&json["segments"][3]), fields[..10]);
    assert_eq!(keys(&json["segments"][0]["words"][0]), ["end", "probability", "start", "word"]);
}

#[test]
fn json_full_has_the_fields_of_whisper_cpp() {
    let text = written(OutputFormat::JsonFull, &spoken(), SubtitleLayout::default());
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["result"]["language"], "en");
    let part = &json["transcription"][1];
    assert_eq!(part["text"], " Four five six");
    assert_eq!(part["timestamps"]["from"], "00:00:02,500");
    assert_eq!((&part["offsets"]["from"], &part["offsets"]["to"]), (&2500.into(), &4000.into()));
    let token = serde_json::json!({ "text": " a", "id": 400, "p": 0.5 });
    assert_eq!((part["tokens"].as_array().unwrap().len(), &part["tokens"][1]), (3, &token));
    let mut timed = spoken();
    timed.segments[1].token_times = vec![(2.5, 2.5), (2.5, 3.0), (3.0, 4.0)];
    let text = written(OutputFormat::JsonFull, &timed, SubtitleLayout::default());
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let token = &json["transcription"][1]["tokens"][1];
    assert_eq!(token["timestamps"]["to"], "00:00:03,000");
    assert_eq!(token["offsets"], serde_json::json!({ "from": 2500, "to": 3000 }));
    assert!(part.get("speaker").is_none(), "{part}");
    let word = &part["words"][2];
    assert_eq!((&word["text"], &word["offsets"]["from"]), (&" six".into(), &3500.into()));
}

fn with_words(id: usize, words: &[(&str, f64, f64)]) -> Segment {
    let words: Vec<Word> = words
        .iter()
        .map(|&(word, start, end)| Word { word: word.to_owned(), start, end, probability: 0.5 })
        .collect();
    let text: String = words.iter().map(|word| word.word.as_str()).collect();
    let (start, end) = (words[0].start, words[words.len() - 1].end);
    Segment { words: Some(words), ..segment(id, start, end, &text) }
}

fn spoken() -> Transcript {
    let segments = vec![
        with_words(0, &[(" One", 0.0, 0.5), (" two,", 0.5, 1.0), (" three.", 1.2, 2.5)]),
        with_words(1, &[(" Four", 2.5, 3.0), (" five", 3.0, 3.5), (" six", 3.5, 4.0)]),
        with_words(2, &[(" 你", 9.0, 9.2), ("好", 9.2, 9.4), ("世", 9.4, 9.6), ("界", 9.6, 10.0)]),
    ];
    let text = segments.iter().map(|segment| segment.text.as_str()).collect();
    Transcript {
        text,
        segments,
        language: "en".to_owned(),
        duration: 10.0,
        cancelled: false,
        has_failed: false,
    }
}

#[track_caller]
fn check_cues(layout: SubtitleLayout, expected: &[(u64, u64, &str)]) {
    let mut cues = Cues::new(layout, OutputFormat::Srt);
    let mut got: Vec<Cue> = spoken().segments.iter().flat_map(|s| cues.push(s)).collect();
    got.extend(cues.finish());
    let got: Vec<_> = got.iter().map(|c| (c.start, c.end, c.text.as_str())).collect();
    assert_eq!(got, expected, "{layout:?}");
}

/// Expected: `SubtitlesWriter.iterate_result` of openai/whisper 20250625 for the same segments.
#[test]
fn lines_break_where_those_of_openai_whisper_do() {
    let none = SubtitleLayout::default();
    let plain =
        [(0, 2500, "One two, three."), (2500, 4000, "Four five six"), (9000, 10000, "你好世界")];
    check_cues(none, &plain);
    check_cues(SubtitleLayout { max_line_count: Some(1), ..none }, &plain);
    check_cues(
        SubtitleLayout { max_line_width: Some(9), ..none },
        &[(0, 2500, "One two,\nthree."), (2500, 4000, "Four five\nsix"), (9000, 10000, "你好世界")],
    );
    check_cues(
        SubtitleLayout { max_line_width: Some(3), ..none },
        &[
            (0, 2500, "One\ntwo,\nthree."),
            (2500, 4000, "Four\nfive\nsix"),
            (9000, 10000, "你好世\n界"),
        ],
    );
    let short = [
        (0, 1000, "One two,"),
        (1200, 2500, "three."),
        (2500, 3500, "Four five"),
        (3500, 4000, "six"),
        (9000, 10000, "你好世界"),
    ];
    check_cues(SubtitleLayout { max_line_width: Some(9), max_line_count: Some(1), ..none }, &short);
    check_cues(
        SubtitleLayout { max_line_width: Some(12), max_line_count: Some(2), ..none },
        &[(0, 3000, "One two,\nthree. Four"), (3000, 4000, "five six"), (9000, 10000, "你好世界")],
    );
    check_cues(
        SubtitleLayout { max_line_width: Some(40), max_line_count: Some(2), ..none },
        &[(0, 4000, "One two, three. Four five six"), (9000, 10000, "你好世界")],
    );
    let by_two = [&short[..4], &[(9000, 9400, "你好"), (9400, 10000, "世界")][..]].concat();
    check_cues(SubtitleLayout { max_words_per_line: Some(2), ..none }, &by_two);
    check_cues(
        SubtitleLayout { highlight_words: true, max_line_width: Some(10), ..none },
        &[
            (0, 500, "<u>One</u> two,\nthree."),
            (500, 1000, "One <u>two,</u>\nthree."),
            (1000, 1200, "One two,\nthree."),
            (1200, 2500, "One two,\n<u>three.</u>"),
            (2500, 3000, "<u>Four</u> five\nsix"),
            (3000, 3500, "Four <u>five</u>\nsix"),
            (3500, 4000, "Four five\n<u>six</u>"),
            (9000, 9200, "<u>你</u>好世界"),
            (9200, 9400, "你<u>好</u>世界"),
            (9400, 9600, "你好<u>世</u>界"),
            (9600, 10000, "你好世<u>界</u>"),
        ],
    );
}

#[test]
fn marks_of_highlighting_are_not_escaped() {
    let segments = vec![with_words(0, &[(" R&D", 0.0, 0.5), (" <b>", 0.5, 1.0)])];
    let transcript = Transcript { segments, ..spoken() };
    let layout = SubtitleLayout { highlight_words: true, ..SubtitleLayout::default() };
    assert_eq!(
        written(OutputFormat::Vtt, &transcript, layout),
        "WEBVTT\n\n00:00.000 --> 00:00.500\n<u>R&amp;D</u> &lt;b>\n\n\
         00:00.500 --> 00:01.000\nR&amp;D <u>&lt;b></u>\n\n"
    );
}

#[test]
fn lines_of_text_have_the_times_of_whisper_cpp() {
    let text = |transcript: &Transcript, layout| {
        let mut writer = TranscriptWriter::new(OutputFormat::Txt, layout).with_times();
        let mut out = Vec::new();
        writer.begin(&mut out).unwrap();
        transcript.segments.iter().for_each(|s| writer.segment(&mut out, s).unwrap());
        writer.end(&mut out, transcript).unwrap();
        String::from_utf8(out).unwrap()
    };
    let plain = SubtitleLayout::default();
    assert_eq!(
        text(&transcript(), plain),
        "[00:00:00.000 --> 00:00:02.500]   Hello.\n\
         [01:01:01.040 --> 01:01:02.000]   a -> b\tc & \"d\" <e> f\n"
    );
    // `-ml 1 -sow`: one word per line.
    let narrow = SubtitleLayout { max_line_width: Some(1), max_line_count: Some(1), ..plain };
    let words = text(&spoken(), narrow);
    assert!(words.starts_with(
        "[00:00:00.000 --> 00:00:00.500]   One\n[00:00:00.500 --> 00:00:01.000]   two,\n"
    ));
    assert_eq!(words.lines().count(), 10);
    // Lines of two are one, and no word is marked.
    let marked = SubtitleLayout { highlight_words: true, ..plain };
    assert!(text(&spoken(), marked).starts_with("[00:00:00.000 --> 00:00:02.500]   One two"));
    let two = SubtitleLayout { max_line_width: Some(9), max_line_count: Some(2), ..plain };
    assert!(
        text(&spoken(), two).starts_with("[00:00:00.000 --> 00:00:02.500]   One two, three.\n")
    );
}

#[test]
fn lyrics_have_times_of_words() {
    let layout = SubtitleLayout { highlight_words: true, ..SubtitleLayout::default() };
    let mut transcript = spoken();
    transcript.segments[1].speaker = Some("left".to_owned());
    transcript.segments[2].words = Some(Vec::new());
    let lyrics = written(OutputFormat::Lrc, &transcript, layout);
    assert_eq!(
        lyrics,
        "[00:00.00]<00:00.00>One <00:00.50>two, <00:01.20>three.\n\
         [00:02.50]left: <00:02.50>Four <00:03.00>five <00:03.50>six\n[00:09.00]你好世界\n"
    );
    let plain = written(OutputFormat::Lrc, &transcript, SubtitleLayout::default());
    assert!(plain.starts_with("[00:00.00]One two, three.\n[00:02.50]left: Four"), "{plain}");
}

#[test]
fn segments_without_words_are_subtitles_of_their_own() {
    let layout = SubtitleLayout {
        max_line_width: Some(40),
        max_line_count: Some(2),
        ..SubtitleLayout::default()
    };
    let mut transcript = spoken();
    transcript.segments[1].words = Some(Vec::new());
    let text = written(OutputFormat::Srt, &transcript, layout);
    let starts: Vec<&str> = text.lines().filter(|line| line.contains("-->")).collect();
    assert_eq!(
        starts,
        [
            "00:00:00,000 --> 00:00:02,500",
            "00:00:02,500 --> 00:00:04,000",
            "00:00:09,000 --> 00:00:10,000"
        ]
    );
}

#[test]
fn names_are_read_back_and_extensions_differ() {
    for &format in OutputFormat::ALL {
        assert_eq!(format.name().parse(), Ok(format));
        let same = OutputFormat::ALL.iter().filter(|f| f.extension() == format.extension());
        assert_eq!(same.count(), 1);
    }
    let error = "docx".parse::<OutputFormat>().unwrap_err();
    assert_eq!(error, "expected txt, srt, vtt, tsv, json, json-full, lrc, csv, got `docx`");
}

#[test]
fn clocks_round_to_milliseconds() {
    assert_eq!(clock(milliseconds(59.9996), false, '.'), "01:00.000");
    assert_eq!(clock(0, true, ','), "00:00:00,000");
}

#[test]
fn speakers_are_named_in_every_format() {
    let mut spoken = spoken();
    for (segment, name) in spoken.segments.iter_mut().zip(["left", "a>b", "left"]) {
        segment.speaker = Some(name.to_owned());
    }
    let text = |format, layout| written(format, &spoken, layout);
    let plain = SubtitleLayout::default();
    assert!(text(OutputFormat::Txt, plain).starts_with("[left] One two, three.\n[a>b] Four"));
    assert!(text(OutputFormat::Csv, plain).contains("0,2500,\"[left] One two, three.\"\n"));
    assert!(text(OutputFormat::Lrc, plain).starts_with("[00:00.00]left: One two, three.\n"));
    assert!(text(OutputFormat::Vtt, plain).contains("\n<v a&gt;b>Four five six\n"));
    // A subtitle that spans segments has one speaker.
    let wide = SubtitleLayout { max_line_width: Some(99), max_line_count: Some(2), ..plain };
    let srt = text(OutputFormat::Srt, wide);
    let shown: Vec<&str> = srt.lines().skip(2).step_by(4).collect();
    assert_eq!(shown, ["[left] One two, three.", "[a>b] Four five six", "[left] 你好世界"]);
    let json: serde_json::Value = serde_json::from_str(&text(OutputFormat::Json, plain)).unwrap();
    assert_eq!(json["segments"][1]["speaker"], "a>b");
}
