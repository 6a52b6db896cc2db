//! Uploads: lies, truncation, broken and parallel streams.

use std::time::Duration;

use cipherhop_proto::v1;
use cipherhop_proto::v1::submit_response::Outcome;
use cipherhop_proto::{Digest, Reason};

use crate::common::*;

#[tokio::test(flavor = "multi_thread")]
async fn uploads_refuse_wrong_offsets_lies_and_truncation() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let bytes = ciphertext(SET, 3, 4);
    let total = bytes.len() as u64;
    let open = |size| v1::OpenUploadRequest {
        blob: Some(v1::BlobRef {
            size,
            ..blob_ref(&bytes, v1::BlobRole::Input)
        }),
        attempt_id: Vec::new(),
        epoch: 0,
    };
    let append = |upload_id: &[u8], offset, data: &[u8]| {
        let message = v1::AppendRequest {
            upload_id: upload_id.to_vec(),
            offset,
            data: data.to_vec(),
            ..Default::default()
        };
        futures::stream::iter([message])
    };
    let mut blobs = owner.blob();
    assert_eq!(
        reason(blobs.open_upload(open(u64::MAX)).await),
        Reason::BlobTooLarge
    );
    let id = blobs
        .open_upload(open(total))
        .await
        .unwrap()
        .into_inner()
        .upload_id;
    let first = blobs
        .append(append(&id, 0, &bytes[..1000]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(first.committed, 1000);
    for offset in [0, 999, 1001, u64::MAX] {
        let refused = blobs.append(append(&id, offset, b"x")).await.unwrap_err();
        assert_eq!(
            cipherhop_proto::status::metadata_of(&refused)["committed"],
            "1000"
        );
        assert_eq!(reason::<()>(Err(refused)), Reason::UploadOffset);
    }
    let finish = v1::FinishRequest {
        upload_id: id.clone(),
    };
    assert_eq!(
        reason(blobs.finish(finish.clone()).await),
        Reason::BlobIncomplete
    );
    let too_long = [&bytes[1000..], b"more"].concat();
    assert_eq!(
        reason(blobs.append(append(&id, 1000, &too_long)).await),
        Reason::BlobSizeMismatch
    );
    assert_eq!(
        reason(
            blobs
                .append(append(&id, 1000, &vec![0; (1 << 20) + 1]))
                .await
        ),
        Reason::BadRequest
    );
    // Other bytes of the right length: discarded, and the upload starts again from zero.
    let lie = vec![7; bytes.len() - 1000];
    blobs.append(append(&id, 1000, &lie)).await.unwrap();
    assert_eq!(
        reason(blobs.finish(finish.clone()).await),
        Reason::BlobDigestMismatch
    );
    let opened = blobs.open_upload(open(total)).await.unwrap().into_inner();
    assert_eq!(opened.committed, 0);
    blobs
        .append(append(&opened.upload_id, 0, &bytes))
        .await
        .unwrap();
    let finish = v1::FinishRequest {
        upload_id: opened.upload_id,
    };
    blobs.finish(finish.clone()).await.unwrap();
    blobs.finish(finish).await.expect("finish is idempotent");
    assert!(
        blobs
            .open_upload(open(total))
            .await
            .unwrap()
            .into_inner()
            .complete
    );
    let stat = v1::StatRequest {
        digest: Digest::of(&bytes).to_vec(),
    };
    assert_eq!(
        blobs.stat(stat).await.unwrap().into_inner(),
        v1::StatResponse {
            complete: true,
            size: total
        }
    );
    let unknown = v1::FinishRequest {
        upload_id: vec![1; 16],
    };
    assert_eq!(reason(blobs.finish(unknown).await), Reason::UploadNotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_upload_stream_keeps_what_arrived() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let bytes = ciphertext(SET, 3, 4);
    let open = v1::OpenUploadRequest {
        blob: Some(blob_ref(&bytes, v1::BlobRole::Input)),
        attempt_id: Vec::new(),
        epoch: 0,
    };
    let id = owner
        .blob()
        .open_upload(open.clone())
        .await
        .unwrap()
        .into_inner()
        .upload_id;
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    let mut client = owner.blob();
    let call = tokio::spawn(async move {
        client
            .append(tokio_stream::wrappers::ReceiverStream::new(receiver))
            .await
    });
    for (number, part) in bytes[..3000].chunks(1000).enumerate() {
        let upload_id = if number == 0 { id.clone() } else { Vec::new() };
        sender
            .send(v1::AppendRequest {
                upload_id,
                offset: 0,
                data: part.to_vec(),
                ..Default::default()
            })
            .await
            .unwrap();
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    // Opening again while the old stream hangs takes over from it.
    let opened = owner.blob().open_upload(open).await.unwrap().into_inner();
    assert_eq!(opened.committed, 3000);
    call.abort();
    let rest = v1::AppendRequest {
        upload_id: opened.upload_id.clone(),
        offset: 3000,
        data: bytes[3000..].to_vec(),
        ..Default::default()
    };
    owner
        .blob()
        .append(futures::stream::iter([rest]))
        .await
        .unwrap();
    owner
        .blob()
        .finish(v1::FinishRequest {
            upload_id: opened.upload_id,
        })
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_accounts_may_send_the_same_result_at_once() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let id = new_chain("demo", 1).create(&owner).await;
    let (ada, bob) = (server.volunteer("ada").await, server.volunteer("bob").await);
    let (given_a, out) = (ada.acquire(0).await.unwrap(), output(0));
    let trace_a = trace(&given_a);
    let request_a = submit_request(&given_a, &out, &trace_a);
    assert_eq!(
        ada.submit(request_a.clone()).await.unwrap().outcome(),
        Outcome::NeedUpload
    );
    let attempt_a = attempt_ref(&given_a);
    let open = v1::OpenUploadRequest {
        blob: Some(blob_ref(&out, v1::BlobRole::Output)),
        attempt_id: attempt_a.attempt_id.clone(),
        epoch: attempt_a.epoch,
    };
    let opened = ada
        .connection
        .blob()
        .open_upload(open.clone())
        .await
        .unwrap()
        .into_inner();
    let append = |offset: usize, data: &[u8]| {
        let upload_id = opened.upload_id.clone();
        futures::stream::iter([v1::AppendRequest {
            upload_id,
            offset: offset as u64,
            data: data.to_vec(),
            ..Default::default()
        }])
    };
    ada.connection
        .blob()
        .append(append(0, &out[..5000]))
        .await
        .unwrap();
    // Meanwhile the same bytes arrive from somebody else, here the key holder.
    send(&owner, &out, v1::BlobRole::Output, None).await;
    let late = ada
        .connection
        .blob()
        .append(append(5000, &out[5000..]))
        .await;
    assert_eq!(reason(late), Reason::UploadNotFound);
    assert!(
        ada.connection
            .blob()
            .open_upload(open)
            .await
            .unwrap()
            .into_inner()
            .complete
    );
    let left = std::fs::read_dir(server.dir.path().join("blobs/uploads"))
        .unwrap()
        .count();
    assert_eq!(left, 0, "the part that is not needed any more was removed");
    send(
        &ada.connection,
        &trace_a,
        v1::BlobRole::Trace,
        Some(&attempt_a),
    )
    .await;
    assert_eq!(
        ada.submit(request_a).await.unwrap().outcome(),
        Outcome::AcceptedVerifying
    );
    let given_b = bob.acquire(5).await.unwrap();
    let trace_b = trace(&given_b);
    let answer = bob
        .submit(submit_request(&given_b, &out, &trace_b))
        .await
        .unwrap();
    assert_eq!(
        answer.need_upload.len(),
        1,
        "the output is there already, only the trace is missing"
    );
    assert_eq!(
        bob.hand_in(&given_b, &out).await.unwrap(),
        Outcome::AcceptedMatched
    );
    assert_eq!(
        status(&owner, &id).await.chain.unwrap().state(),
        v1::ChainState::Completed
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn i3_a_crash_between_publishing_bytes_and_writing_the_row_is_made_up_for() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let bytes = ciphertext(SET, 3, 4);
    let digest = Digest::of(&bytes);
    let open = v1::OpenUploadRequest {
        blob: Some(blob_ref(&bytes, v1::BlobRole::Input)),
        attempt_id: Vec::new(),
        epoch: 0,
    };
    let mut blobs = owner.blob();
    let opened = blobs.open_upload(open.clone()).await.unwrap().into_inner();
    let part = |offset: usize, data: &[u8], upload_id: Vec<u8>| {
        futures::stream::iter([v1::AppendRequest {
            upload_id,
            offset: offset as u64,
            data: data.to_vec(),
            ..Default::default()
        }])
    };
    blobs
        .append(part(0, &bytes[..9000], opened.upload_id.clone()))
        .await
        .unwrap();
    // The disk loses the part file: the row goes back, and the upload starts again.
    let folder = server.dir.path().join("blobs");
    for file in std::fs::read_dir(folder.join("uploads")).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let opened = blobs.open_upload(open.clone()).await.unwrap().into_inner();
    assert_eq!(opened.committed, 0);
    blobs
        .append(part(0, &bytes, opened.upload_id.clone()))
        .await
        .unwrap();
    // The file is in place under its digest, the row is not written: as after a crash inside Finish.
    let name = digest.to_string();
    let shard = folder.join("sha256").join(&name[..2]);
    std::fs::create_dir_all(&shard).unwrap();
    std::fs::write(shard.join(&name[2..]), &bytes).unwrap();
    assert!(server.store.blob(digest).await.unwrap().is_none());
    assert!(blobs.open_upload(open).await.unwrap().into_inner().complete);
    assert_eq!(
        std::fs::read_dir(folder.join("uploads")).unwrap().count(),
        0
    );
    assert_eq!(
        server.store.blob(digest).await.unwrap().unwrap().size,
        bytes.len() as u64
    );
    let read = v1::ReadRequest {
        digest: digest.to_vec(),
        offset: 44,
        length: 100,
        ..Default::default()
    };
    let mut stream = blobs.read(read).await.unwrap().into_inner();
    let mut received = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        received.extend(message.data);
    }
    assert_eq!(received, bytes[44..144]);
}
