(
set -e
mkdir -p /somewhere/run
cd /somewhere/run
[ -z "$(ls -A)" ] || { echo 'the folder is not empty: choose another --out' >&2; exit 1; }
cat > ssh.sh <<'TRAINMARK_FILE'
#!/bin/bash
# Trainmark 20260102T030405Z-toy-abc123: a node process on each host, which ends when its input does.
set -m  # a process group for each node's connection
hold() {
    while echo; do sleep 1; done 2> /dev/null | ssh "${@:2}" > "log.ssh$1.txt" 2>&1
    code=$?
    echo $code > "ssh.exit$1"
    return $code
}
end() {
    exec 2> /dev/null  # on which bash names the jobs that it ends
    for group in $(jobs -p); do kill -TERM -- "-$group"; done
    wait
}
trap 'end; exit 1' TERM INT HUP USR1
hold 0 -oBatchMode=yes -oPreferredAuthentications=publickey -oRequestTTY=no -oStrictHostKeyChecking=yes -oServerAliveInterval=5 -oServerAliveCountMax=3 -oConnectTimeout=10 -oControlPath=none ssh://a 'sh -c '"'"'mkdir -p /scratch/20260102T030405Z-toy-abc123
printf '"'"'"'"'"'"'"'"'%s\n'"'"'"'"'"'"'"'"' '"'"'"'"'"'"'"'"'{"schema_version":1,"suite_version":"0.0.0","run_id":"20260102T030405Z-toy-abc123","case":"toy","about":{"title":{"en":"Toy classification","zh":"示例分类"},"task":{"en":"Binary classification","zh":"二分类"},"model":"mlp-16-32-2","dataset":{"en":"two Gaussian clouds","zh":"两个高斯点云"},"metric":"acc","metric_note":{"en":"classification accuracy","zh":"分类准确率"},"sample_note":{"en":"one row of 16 features","zh":"一行数据，16 个特征"},"higher_is_better":true,"work_unit":"samples","mission":null,"precision_labels":{},"messages":{},"page":{"figures":[],"tables":[]},"references":{"columns":[],"parameters":null,"seq_length":null,"samples_per_pass":null,"rows":[]}},"case_key":"toy:pytorch_2.13:cpu:1:1:1","recipe_name":"tiny","recipe":{"micro_batch_size":64,"grad_accum_steps":1,"learning_rate":0.003,"precision":"fp32","compile":false,"kernels":null,"weight_decay":0.0,"max_epochs":10,"max_steps":null,"eval_every_epochs":1,"eval_every_samples":null,"eval_from_sample":null,"target_value":0.9,"target_required":true,"warmup_steps":10,"window_steps":10,"read_ahead_batches":2,"replay_every_windows":null,"seed":1,"timeout_s":1800.0,"data":"generated","world":null},"compared_with":"tiny","fix_hp":{},"extra":{},"rules":"closed","labels":["self-reported","generated-data"],"device":{"vendor":"cpu","torch_type":"cpu","collective_backend":"gloo","product_names":["Fake CPU"]},"peak_tflops":null,"nnodes":2,"nproc":1,"repeat_index":1,"repeat_count":1,"launcher":"local","data":{"folder":"/somewhere/cache/toy-0123456789abcdef","origin":"generated","layout":"npz","content_id":"fedcba9876543210","train_samples":4096,"eval_samples":1000,"best_quality":0.9331927987311419,"quality_comparable":true},"run_dir":"/somewhere/run","resumed":null,"sample_every_s":1.0}'"'"'"'"'"'"'"'"' > /scratch/20260102T030405Z-toy-abc123/plan.json
set -e
exec /opt/env/bin/python -m trainmark.launch.node /scratch/20260102T030405Z-toy-abc123 --port 29500 --heartbeat --node-rank "0" --master "a"
'"'"'' &
hold 1 -oBatchMode=yes -oPreferredAuthentications=publickey -oRequestTTY=no -oStrictHostKeyChecking=yes -oServerAliveInterval=5 -oServerAliveCountMax=3 -oConnectTimeout=10 -oControlPath=none ssh://me@b:2222 'sh -c '"'"'mkdir -p /scratch/20260102T030405Z-toy-abc123
printf '"'"'"'"'"'"'"'"'%s\n'"'"'"'"'"'"'"'"' '"'"'"'"'"'"'"'"'{"schema_version":1,"suite_version":"0.0.0","run_id":"20260102T030405Z-toy-abc123","case":"toy","about":{"title":{"en":"Toy classification","zh":"示例分类"},"task":{"en":"Binary classification","zh":"二分类"},"model":"mlp-16-32-2","dataset":{"en":"two Gaussian clouds","zh":"两个高斯点云"},"metric":"acc","metric_note":{"en":"classification accuracy","zh":"分类准确率"},"sample_note":{"en":"one row of 16 features","zh":"一行数据，16 个特征"},"higher_is_better":true,"work_unit":"samples","mission":null,"precision_labels":{},"messages":{},"page":{"figures":[],"tables":[]},"references":{"columns":[],"parameters":null,"seq_length":null,"samples_per_pass":null,"rows":[]}},"case_key":"toy:pytorch_2.13:cpu:1:1:1","recipe_name":"tiny","recipe":{"micro_batch_size":64,"grad_accum_steps":1,"learning_rate":0.003,"precision":"fp32","compile":false,"kernels":null,"weight_decay":0.0,"max_epochs":10,"max_steps":null,"eval_every_epochs":1,"eval_every_samples":null,"eval_from_sample":null,"target_value":0.9,"target_required":true,"warmup_steps":10,"window_steps":10,"read_ahead_batches":2,"replay_every_windows":null,"seed":1,"timeout_s":1800.0,"data":"generated","world":null},"compared_with":"tiny","fix_hp":{},"extra":{},"rules":"closed","labels":["self-reported","generated-data"],"device":{"vendor":"cpu","torch_type":"cpu","collective_backend":"gloo","product_names":["Fake CPU"]},"peak_tflops":null,"nnodes":2,"nproc":1,"repeat_index":1,"repeat_count":1,"launcher":"local","data":{"folder":"/somewhere/cache/toy-0123456789abcdef","origin":"generated","layout":"npz","content_id":"fedcba9876543210","train_samples":4096,"eval_samples":1000,"best_quality":0.9331927987311419,"quality_comparable":true},"run_dir":"/somewhere/run","resumed":null,"sample_every_s":1.0}'"'"'"'"'"'"'"'"' > /scratch/20260102T030405Z-toy-abc123/plan.json
set -e
exec /opt/env/bin/python -m trainmark.launch.node /scratch/20260102T030405Z-toy-abc123 --port 29500 --heartbeat --node-rank "1" --master "a"
'"'"'' &
for _ in {1..2}; do
    # The other nodes of a failed one may fail by themselves, and tell why.
    wait -n || { { sleep 10; kill -USR1 $$; } & break; }
done
while [ "$(ls ssh.exit* | wc -l)" != 2 ]; do wait -n; done
end
[ "$(cat ssh.exit* | sort -u)" = 0 ]
TRAINMARK_FILE
bash ssh.sh
)
