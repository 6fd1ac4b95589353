"""Nodes in the order and with the scores of sentence-transformers' CrossEncoder."""

from demo_pooling import MODEL, QUERY, RANKING, RERANKER_HTTP, SCORES, TEXTS, assert_close
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.cohere_rerank import CohereRerank

rerank = CohereRerank(
    model=MODEL, api_key="none", base_url=RERANKER_HTTP.removesuffix("/v1"), top_n=3
)
nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]
found = rerank.postprocess_nodes(nodes, query_str=QUERY)
assert [node.text for node in found] == [TEXTS[i] for i in RANKING[:3]]
assert_close([node.score for node in found], [SCORES[i] for i in RANKING[:3]])
