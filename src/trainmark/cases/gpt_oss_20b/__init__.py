"""GPT-OSS 20B, pre-trained as in MLPerf's small mixture-of-experts benchmark."""
