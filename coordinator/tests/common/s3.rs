//! A real S3 server on a socket of this process, with checked signatures and objects in a folder. It can die at a chosen
//! request and come back at the same address.
#![allow(dead_code)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use cipherhop_coordinator::blobs::{S3Blobs, S3Settings};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::dto::*;
use s3s::service::S3ServiceBuilder;
use s3s::{S3Request, S3Response, S3Result};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub const BUCKET: &str = "hops";
pub const KEY_ID: &str = "coordinator";
pub const SECRET: &str = "a-secret-that-no-log-may-hold";

/// When the server dies. It does not answer any more from then on.
#[derive(Default)]
struct Plan {
    /// Requests until then; negative: never.
    left: AtomicI64,
    /// The last one is still carried out, only not answered.
    carried_out: AtomicBool,
    died: watch::Sender<bool>,
    seen: AtomicU64,
    conditional: tokio::sync::Mutex<()>,
}

pub struct S3 {
    pub dir: TempDir,
    address: SocketAddr,
    plan: Arc<Plan>,
    task: JoinHandle<()>,
}

/// A server that does as told without a look at the conditions, as older storages do.
struct Forgetful(FileSystem);

#[async_trait::async_trait]
impl s3s::S3 for Forgetful {
    async fn put_object(
        &self,
        mut request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        request.input.if_match = None;
        request.input.if_none_match = None;
        self.0.put_object(request).await
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        self.0.get_object(request).await
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.0.list_objects_v2(request).await
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.0.delete_object(request).await
    }
}

impl S3 {
    pub async fn start() -> S3 {
        S3::start_as(false).await
    }

    /// One that ignores conditions.
    pub async fn start_forgetful() -> S3 {
        S3::start_as(true).await
    }

    async fn start_as(forgetful: bool) -> S3 {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(BUCKET)).unwrap();
        let plan = Arc::new(Plan::default());
        plan.left.store(-1, Ordering::SeqCst);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = serve(listener, dir.path(), plan.clone(), forgetful);
        let text =
            format!("[default]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n");
        std::fs::write(dir.path().join("credentials"), text).unwrap();
        S3 {
            dir,
            address,
            plan,
            task,
        }
    }

    /// All connections break; then it is there again.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.plan.left.store(-1, Ordering::SeqCst);
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.task = serve(listener, self.dir.path(), self.plan.clone(), false);
    }

    pub async fn stop(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn settings(&self) -> S3Settings {
        S3Settings {
            bucket: BUCKET.into(),
            prefix: "one/coordinator".into(),
            endpoint: Some(self.endpoint()),
            credentials_file: Some(self.dir.path().join("credentials")),
            part_bytes: 5 << 20,
            ..S3Settings::default()
        }
    }

    pub async fn open(&self) -> S3Blobs {
        S3Blobs::open(self.settings(), 64 << 30).await.unwrap()
    }

    /// Dies at the request after so many more.
    pub fn die_after(&self, requests: i64, carried_out: bool) {
        self.plan.died.send_replace(false);
        self.plan.carried_out.store(carried_out, Ordering::SeqCst);
        self.plan.left.store(requests, Ordering::SeqCst);
    }

    pub async fn died(&self) {
        let mut died = self.plan.died.subscribe();
        died.wait_for(|died| *died).await.unwrap();
    }

    pub fn requests(&self) -> u64 {
        self.plan.seen.load(Ordering::SeqCst)
    }

    /// Names of the objects in the bucket, without the prefix.
    pub fn objects(&self) -> Vec<String> {
        let root = self.dir.path().join(BUCKET).join("one/coordinator");
        let mut names: Vec<String> = files(&root)
            .iter()
            .map(|f| f.strip_prefix(&root).unwrap().to_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }

    /// Files of the objects under a part of the prefix.
    pub fn files(&self, under: &str) -> Vec<PathBuf> {
        files(
            &self
                .dir
                .path()
                .join(BUCKET)
                .join("one/coordinator")
                .join(under),
        )
    }

    /// As if everything under a part of the prefix had been written an hour ago.
    pub fn an_hour_passes(&self, under: &str) {
        let then = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        for file in self.files(under) {
            let file = std::fs::File::options().write(true).open(file).unwrap();
            file.set_modified(then).unwrap();
        }
    }

    /// Parts of multipart uploads that are neither complete nor ended.
    pub fn loose_parts(&self) -> usize {
        let all = std::fs::read_dir(self.dir.path()).unwrap();
        all.filter(|f| {
            let name = f.as_ref().unwrap().file_name();
            let name = name.to_str().unwrap();
            name.starts_with(".upload_id-") && name.contains(".part-")
        })
        .count()
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else {
        return all;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => all.push(path),
        }
    }
    all
}

fn serve(listener: TcpListener, root: &Path, plan: Arc<Plan>, forgetful: bool) -> JoinHandle<()> {
    let files = FileSystem::new(root).unwrap();
    let mut builder = match forgetful {
        true => S3ServiceBuilder::new(Forgetful(files)),
        false => S3ServiceBuilder::new(files),
    };
    builder.set_auth(SimpleAuth::from_single(KEY_ID, SECRET));
    let s3 = builder.build();
    tokio::spawn(async move {
        // Connections end with this task.
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((socket, _)) = listener.accept().await {
            let (s3, plan) = (s3.clone(), plan.clone());
            let service = hyper::service::service_fn(move |request| {
                let (s3, plan) = (s3.clone(), plan.clone());
                async move {
                    plan.seen.fetch_add(1, Ordering::SeqCst);
                    let left = plan.left.load(Ordering::SeqCst);
                    if left > 0 {
                        plan.left.fetch_sub(1, Ordering::SeqCst);
                    }
                    if left == 0 {
                        if plan.carried_out.swap(false, Ordering::SeqCst) {
                            let _ = hyper::service::Service::call(&s3, request).await;
                        }
                        plan.died.send_replace(true);
                        std::future::pending::<()>().await;
                        unreachable!();
                    }
                    // S3 checks a condition and writes in one step; this server does not on its own.
                    let conditional = ["if-match", "if-none-match"]
                        .iter()
                        .any(|name| request.headers().contains_key(*name));
                    let _alone = match conditional {
                        true => Some(plan.conditional.lock().await),
                        false => None,
                    };
                    hyper::service::Service::call(&s3, request).await
                }
            });
            connections.spawn(async move {
                let builder = Builder::new(TokioExecutor::new());
                let _ = builder
                    .serve_connection(TokioIo::new(socket), service)
                    .await;
            });
        }
    })
}
