//! Server reflection: on the operators' listener, and there only.

use cipherhop_coordinator::service::serve_admin;
use tonic::Code;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::common::Server;

/// Names of the services that the server tells.
async fn services(url: String) -> Result<Vec<String>, tonic::Status> {
    let channel = tonic::transport::Endpoint::from_shared(url).unwrap();
    let mut client = ServerReflectionClient::new(channel.connect().await.unwrap());
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = client
        .server_reflection_info(tokio_stream::once(request))
        .await?
        .into_inner();
    let answer = answers.message().await?.unwrap();
    match answer.message_response.unwrap() {
        MessageResponse::ListServicesResponse(list) => {
            Ok(list.service.into_iter().map(|s| s.name).collect())
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_listener_tells_its_services_and_the_public_one_does_not() {
    let server = Server::start().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let core = server.core.clone();
    tokio::spawn(async move { serve_admin(core, listener).await.unwrap() });
    let told = services(url.clone()).await.unwrap();
    for name in [
        "cipherhop.v1.AdminService",
        "cipherhop.v1.ChainService",
        "grpc.health.v1.Health",
    ] {
        assert!(told.iter().any(|s| s == name), "{name} in {told:?}");
    }
    let refused = services(server.url.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    // The calls themselves are there, too, with the same tokens.
    let admin = crate::common::connect(&url, Some(&server.admin));
    let request = cipherhop_proto::v1::ListDevicesRequest {};
    admin.admin().list_devices(request).await.unwrap();
}
