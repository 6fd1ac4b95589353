// Streams a chat, cancels one, lets one run into its deadline, and reads the details of an error.
//
// Written for the gRPC of Debian 12, 1.51, and C++17; see the Makefile.
#include <chrono>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "clients/error_details.pb.h"
#include "signalbox_protos/inference/v1/inference.grpc.pb.h"

namespace pb = signalbox::inference::v1;
using Violations = std::vector<google::rpc::BadRequest::FieldViolation>;

pb::ChatRequest make_request(const std::string& text) {
  pb::ChatRequest request;
  pb::ChatMessage* message = request.add_messages();
  message->set_role(pb::CHAT_ROLE_USER);
  message->add_content()->set_text(text);
  return request;
}

// Hands over pieces of text until the answer ends, and returns how it ended. To cancel the context
// is to abort the request.
grpc::Status chat(pb::InferenceService::Stub& stub, grpc::ClientContext& context,
                  const pb::ChatRequest& request,
                  const std::function<void(const std::string&)>& take) {
  std::unique_ptr<grpc::ClientReader<pb::ChatResponse>> reader = stub.Chat(&context, request);
  pb::ChatResponse response;
  while (reader->Read(&response)) {
    for (const pb::SequenceDelta& output : response.outputs()) take(output.text());
  }
  return reader->Finish();
}

// What google.rpc.BadRequest says of each field.
Violations violations_of(const grpc::Status& failed) {
  Violations found;
  google::rpc::Status status;
  if (!status.ParseFromString(failed.error_details())) return found;
  for (const google::protobuf::Any& detail : status.details()) {
    google::rpc::BadRequest bad_request;
    if (!detail.UnpackTo(&bad_request)) continue;
    found.insert(found.end(), bad_request.field_violations().begin(),
                 bad_request.field_violations().end());
  }
  return found;
}

bool answer(pb::InferenceService::Stub& stub) {
  pb::ChatRequest question = make_request("What is the capital of South Korea?");
  question.mutable_sampling_params()->set_temperature(0);
  question.mutable_sampling_params()->set_max_tokens(24);
  grpc::ClientContext context;
  std::cout << "answer: ";
  grpc::Status status = chat(stub, context, question, [](const std::string& piece) {
    std::cout << piece << std::flush;
  });
  std::cout << std::endl;
  if (!status.ok()) std::cerr << status.error_message() << std::endl;
  return status.ok();
}

bool cancel(pb::InferenceService::Stub& stub, const pb::ChatRequest& endless) {
  grpc::ClientContext context;
  grpc::Status status = chat(stub, context, endless, [&](const std::string& piece) {
    std::cout << "cancelled after: " << piece << std::endl;
    context.TryCancel();
  });
  return status.error_code() == grpc::StatusCode::CANCELLED;
}

bool be_late(pb::InferenceService::Stub& stub, const pb::ChatRequest& endless) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  grpc::Status status = chat(stub, context, endless, [](const std::string&) {});
  if (status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) return false;
  std::cout << "late: DEADLINE_EXCEEDED" << std::endl;
  return true;
}

bool be_refused(pb::InferenceService::Stub& stub) {
  pb::ChatRequest request = make_request("Hello");
  request.mutable_sampling_params()->set_temperature(9);
  grpc::ClientContext context;
  grpc::Status status = chat(stub, context, request, [](const std::string&) {});
  if (status.error_code() != grpc::StatusCode::INVALID_ARGUMENT) return false;
  Violations found = violations_of(status);
  for (const auto& violation : found) {
    std::cout << "refused: INVALID_ARGUMENT " << violation.field() << ": "
              << violation.description() << std::endl;
  }
  return !found.empty();
}

int main(int argc, char** argv) {
  std::string address = argc > 1 ? argv[1] : "127.0.0.1:50051";
  auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  std::unique_ptr<pb::InferenceService::Stub> stub = pb::InferenceService::NewStub(channel);
  pb::ChatRequest endless = make_request("Tell me a story.");
  endless.mutable_sampling_params()->set_ignore_eos(true);
  bool succeeded = answer(*stub) && cancel(*stub, endless) && be_late(*stub, endless) &&
                   be_refused(*stub);
  return succeeded ? 0 : 1;
}
