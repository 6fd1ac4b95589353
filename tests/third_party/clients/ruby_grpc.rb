# By generated code: text, usage, finish reason, order of the stream, `GRPC::InvalidArgument`

root = File.expand_path("../../../protos", __dir__)
proto = File.join(root, "signalbox_protos/inference/v1/inference.proto")
system(
  "grpc_tools_ruby_protoc", "-I", root, "--ruby_out=.", "--grpc_out=.", proto, exception: true
)
$LOAD_PATH.unshift(Dir.pwd)
require "signalbox_protos/inference/v1/inference_services_pb"

include Signalbox::Inference::V1

QUESTION = "What is the capital of South Korea?"
ANSWER = "The capital of South Korea is Seoul."
PROMPT_TOKENS, COMPLETION_TOKENS = 38, 9
BAD_TEMPERATURE = 9.0
REFUSAL = "temperature: allowed: [0, 2]; given: 9.0"
ROUTER = InferenceService::Stub.new(ENV.fetch("SIGNALBOX_ROUTER"), :this_channel_is_insecure)

def chat(temperature)
  request = ChatRequest.new(
    messages: [{ role: :CHAT_ROLE_USER, content: [{ text: QUESTION }] }],
    sampling_params: { temperature: temperature, max_tokens: 24 }
  )
  ROUTER.chat(request, deadline: Time.now + 300).to_a
end

def check(found, expected)
  raise "#{found.inspect} is not #{expected.inspect}" unless found == expected
end

answers = chat(0)
deltas = answers.flat_map { |answer| answer.outputs.to_a }
check(deltas.map(&:text).join, ANSWER)
reasons = deltas.map { |delta| delta.finish&.reason }
check(reasons, [nil] * (deltas.size - 1) + [:FINISH_REASON_STOP])
usage = answers.last.usage
check([usage.prompt_tokens, usage.completion_tokens], [PROMPT_TOKENS, COMPLETION_TOKENS])

begin
  chat(BAD_TEMPERATURE)
rescue GRPC::InvalidArgument => error
  check(error.details.include?(REFUSAL), true)
else
  raise "a temperature of 9 is taken"
end
