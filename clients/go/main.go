// Streams a chat, cancels one, lets one run into its deadline, and reads the details of an error.
//
// Written for the gRPC of Debian 12, 1.33; see the Makefile.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pb "signalbox/inferencepb"
)

func main() {
	address := "127.0.0.1:50051"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	connection, err := grpc.Dial(address, grpc.WithInsecure())
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	if err := run(pb.NewInferenceServiceClient(connection)); err != nil {
		log.Fatal(err)
	}
}

func run(client pb.InferenceServiceClient) error {
	greedy, maxTokens, ignoreEos, tooHot := float32(0), uint32(24), true, float32(9)
	question := chatRequest("What is the capital of South Korea?",
		&pb.SamplingParams{Temperature: &greedy, MaxTokens: &maxTokens})
	endless := chatRequest("Tell me a story.", &pb.SamplingParams{IgnoreEos: &ignoreEos})
	refused := chatRequest("Hello", &pb.SamplingParams{Temperature: &tooHot})

	fmt.Print("answer: ")
	if err := chat(context.Background(), client, question, func(piece string) {
		fmt.Print(piece)
	}); err != nil {
		return err
	}
	fmt.Println()

	// Cancelling the context aborts the request.
	ctx, cancel := context.WithCancel(context.Background())
	err := chat(ctx, client, endless, func(piece string) {
		fmt.Printf("cancelled after: %s\n", piece)
		cancel()
	})
	if status.Code(err).String() != "Canceled" {
		return fmt.Errorf("a cancelled call ended with %v", err)
	}

	ctx, cancel = context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	err = chat(ctx, client, endless, func(string) {})
	fmt.Printf("late: %v\n", status.Code(err))

	err = chat(context.Background(), client, refused, func(string) {})
	for _, violation := range violationsOf(err) {
		fmt.Printf("refused: %v %s: %s\n", status.Code(err), violation.Field, violation.Description)
	}
	return nil
}

func chatRequest(text string, params *pb.SamplingParams) *pb.ChatRequest {
	content := []*pb.ContentPart{{Part: &pb.ContentPart_Text{Text: text}}}
	messages := []*pb.ChatMessage{{Role: pb.ChatRole_CHAT_ROLE_USER, Content: content}}
	return &pb.ChatRequest{Messages: messages, SamplingParams: params}
}

// chat hands over pieces of text until the answer ends.
func chat(
	ctx context.Context, client pb.InferenceServiceClient, request *pb.ChatRequest, take func(string),
) error {
	stream, err := client.Chat(ctx, request)
	if err != nil {
		return err
	}
	for {
		response, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		for _, output := range response.Outputs {
			take(output.Text)
		}
	}
}

// violationsOf returns what google.rpc.BadRequest says of each field.
func violationsOf(err error) []*errdetails.BadRequest_FieldViolation {
	var found []*errdetails.BadRequest_FieldViolation
	for _, detail := range status.Convert(err).Details() {
		if badRequest, ok := detail.(*errdetails.BadRequest); ok {
			found = append(found, badRequest.FieldViolations...)
		}
	}
	return found
}
