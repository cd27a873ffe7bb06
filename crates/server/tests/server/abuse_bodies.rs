//! Bodies that take more than they show: bombs, uploads beside each other, forms of other sites.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::Request;
use futures_core::Stream;
use stonechat_server::ServerOptions;
use tokio::sync::mpsc;

use crate::abuse_transport::{start, talk};
use crate::support::{App, language, speech, test_data};

/// A form with this file, up to the end of the file.
fn open_form(file: &[u8]) -> Vec<u8> {
    let head = b"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n".to_vec();
    [head, file.to_vec()].concat()
}

fn form(file: &[u8]) -> Vec<u8> {
    [open_form(file), b"\r\n--b--\r\n".to_vec()].concat()
}

fn upload(body: Body) -> Request<Body> {
    let request = Request::post("/v1/audio/transcriptions");
    request.header("content-type", "multipart/form-data; boundary=b").body(body).unwrap()
}

/// Body whose parts arrive by a channel.
struct Parts(mpsc::Receiver<Vec<u8>>);

impl Stream for Parts {
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|part| part.map(|part| Ok(part.into())))
    }
}

/// A FLAC file of silence: 16 kHz, mono, frames of 65,535 samples in a dozen bytes each.
fn silent_flac(n_frames: u32) -> Vec<u8> {
    const BLOCK: u64 = 65_535;
    let crc = |bytes: &[u8], polynomial: u32, n_bits: u32| {
        bytes.iter().fold(0_u32, |crc, byte| {
            (0..8).fold(crc ^ (u32::from(*byte) << (n_bits - 8)), |crc, _| {
                let carry = if crc >> (n_bits - 1) & 1 == 1 { polynomial } else { 0 };
                (crc << 1 ^ carry) & ((1 << n_bits) - 1)
            })
        })
    };
    let mut file = b"fLaC\x80\x00\x00\x22\xff\xff\xff\xff\0\0\0\0\0\0".to_vec();
    // Rate (20 bits), channels less one (3), bits of a sample less one (5), samples (36).
    let n_samples = BLOCK * u64::from(n_frames);
    file.extend_from_slice(&(16_000_u64 << 44 | 15 << 36 | n_samples).to_be_bytes());
    file.extend_from_slice(&[0; 16]);
    for i in 0..n_frames {
        let mut frame = vec![0xff, 0xf8, 0x70, 0x08];
        // Number of the frame, coded as in UTF-8.
        let number = char::from_u32(i).unwrap().to_string();
        frame.extend_from_slice(number.as_bytes());
        frame.extend_from_slice(&[0xff, 0xfe]);
        frame.push(crc(&frame, 0x07, 8) as u8);
        frame.extend_from_slice(&[0, 0, 0]);
        let check = crc(&frame, 0x8005, 16) as u16;
        frame.extend_from_slice(&check.to_be_bytes());
        file.extend(frame);
    }
    file
}

/// A `WebM` file of silence: Opus packets of 120 ms in eight bytes each.
fn silent_webm(n_blocks: usize) -> Vec<u8> {
    let element = |id: &[u8], content: &[u8]| {
        let size = (content.len() as u64 | 1 << 56).to_be_bytes();
        [id, &size, content].concat()
    };
    let header = element(&[0x42, 0x82], b"webm");
    let info = [
        element(&[0x2a, 0xd7, 0xb1], &1_000_000_u32.to_be_bytes()),
        element(&[0x4d, 0x80], b"a"),
        element(&[0x57, 0x41], b"a"),
    ]
    .concat();
    let opus_head = b"OpusHead\x01\x01\0\0\x80\xbb\0\0\0\0\0";
    let sound = [element(&[0xb5], &48_000_f64.to_be_bytes()), element(&[0x9f], &[1])].concat();
    let track = [
        element(&[0xd7], &[1]),
        element(&[0x73, 0xc5], &[1]),
        element(&[0x83], &[2]),
        element(&[0x86], b"A_OPUS"),
        element(&[0x63, 0xa2], opus_head),
        element(&[0xe1], &sound),
    ]
    .concat();
    let tracks = element(&[0x16, 0x54, 0xae, 0x6b], &element(&[0xae], &track));
    let mut segment = [element(&[0x15, 0x49, 0xa9, 0x66], &info), tracks].concat();
    for first in (0..n_blocks).step_by(256) {
        let mut cluster = element(&[0xe7], &(first as u32 * 120).to_be_bytes());
        for block in 0..(n_blocks - first).min(256) {
            // Track 1, time in the cluster, flags; six empty frames of CELT.
            let [high, low] = (block as u16 * 120).to_be_bytes();
            cluster.extend([0xa3, 0x86, 0x81, high, low, 0x80, 0xfb, 6]);
        }
        segment.extend(element(&[0x1f, 0x43, 0xb6, 0x75], &cluster));
    }
    let header = element(&[0x1a, 0x45, 0xdf, 0xa3], &header);
    [header, element(&[0x18, 0x53, 0x80, 0x67], &segment)].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_files_of_much_silence_are_refused() {
    let send = async |file: Vec<u8>, max_audio_seconds, max_audio_memory| {
        let limits = ServerOptions { max_audio_seconds, max_audio_memory, ..Default::default() };
        let app = App::new(ServerOptions { models: vec![speech("s")], ..limits }).await;
        app.send(upload(Body::from(form(&file)))).await
    };
    // 4 s are decoded; hours from a few bytes a second are more than the seconds, or than the memory.
    for (short, long) in
        [(silent_flac(1), silent_flac(3600)), (silent_webm(33), silent_webm(120_000))]
    {
        let answer = send(short, 60, 16 << 20).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let answer = send(long.clone(), 60, 1 << 30).await;
        assert_eq!(answer.status, 413, "{answer:?}");
        let answer = send(long, 1 << 20, 16 << 20).await;
        assert_eq!(answer.status, 413, "{answer:?}");
        assert!(answer.message().contains("16777216 bytes of file and samples"), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_beside_others_waits_for_memory_and_one_too_large_does_not() {
    let file = std::fs::read(test_data("audio/quick_brown_fox.wav")).unwrap();
    let max_audio_memory = (file.len() as u64 + (1 << 20)) * 3;
    let models = vec![speech("s")];
    let app = App::new(ServerOptions { models, max_audio_memory, ..Default::default() }).await;
    // One that stalls with nearly all of the memory.
    let (sender, parts) = mpsc::channel(1);
    let first = app.send(upload(Body::from_stream(Parts(parts))));
    let second = async {
        sender.send(open_form(&vec![0; max_audio_memory as usize - (128 << 10)])).await.unwrap();
        loop {
            let answer = app.send(upload(Body::from(form(&file)))).await;
            if answer.status != 200 {
                break answer;
            }
        }
    };
    let answer = tokio::select! {
        answer = first => answer,
        answer = second => answer,
    };
    assert_eq!((answer.status, answer.kind()), (503, "unavailable_error".to_owned()));
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(answer.message(), "the memory for recordings is in use: try again later");
    // The client has gone: its memory is free again.
    drop(sender);
    assert_eq!(app.send(upload(Body::from(form(&file)))).await.status, 200);
    // More than all of it: told by the length alone, before the body.
    let (_sender, parts) = mpsc::channel(1);
    let mut request = upload(Body::from_stream(Parts(parts)));
    let length = max_audio_memory + (4 << 20);
    request.headers_mut().insert("content-length", length.to_string().parse().unwrap());
    assert_eq!(app.send(request).await.status, 413);
    let huge = vec![0; max_audio_memory as usize + 1];
    assert_eq!(app.send(upload(Body::from(form(&huge)))).await.status, 413);
}

/// Paths of the document that take a body, with its type.
async fn posts(app: &App) -> Vec<(String, String)> {
    let document = app.get("/openapi.json").await.json();
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (media_type, _) in
            item["post"]["requestBody"]["content"].as_object().into_iter().flatten()
        {
            found.push((path.replace("{id}", "0"), media_type.clone()));
        }
    }
    assert!(found.len() > 12, "{found:?}");
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_bodies_are_refused_by_every_route() {
    let app = App::new(ServerOptions { models: vec![language("m")], ..Default::default() }).await;
    // A header of gzip: nothing reads it.
    let bomb = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3][..], &[0; 1000]].concat();
    for (path, media_type) in posts(&app).await {
        for encoding in ["gzip", "deflate", "br", "zstd", "GZIP", "identity, gzip"] {
            let request = Request::post(&path).header("content-type", &media_type);
            let request = request.header("content-encoding", encoding);
            let answer = app.send(request.body(Body::from(bomb.clone())).unwrap()).await;
            assert_eq!(answer.status, 415, "{path} {encoding}: {answer:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn posts_of_other_sites_are_refused_by_every_route() {
    let options = || ServerOptions { models: vec![language("m")], ..Default::default() };
    let address = start(options()).await;
    for (path, media_type) in posts(&App::closed(options())).await {
        for (header, media_type) in [
            ("Origin: https://evil.example", media_type.as_str()),
            ("Origin: null", "text/plain"),
            ("Sec-Fetch-Site: cross-site", "text/plain"),
            ("Sec-Fetch-Site: cross-site", "application/x-www-form-urlencoded"),
        ] {
            let text = format!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\nContent-Type: {media_type}\r\n\
                 Content-Length: 2\r\nConnection: close\r\n\r\n{{}}"
            );
            // Slots have an action in place of a body.
            if path.starts_with("/slots") && !header.starts_with("Origin") {
                continue;
            }
            let answer = talk(&address, &text).await;
            let status = answer.get(9..12).unwrap_or_default();
            assert!(["403", "415"].contains(&status), "{path} {header}: {answer}");
        }
    }
}
