BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('v3.2.0.a');
CREATE TABLE studies (
	study_id INTEGER NOT NULL, 
	study_name VARCHAR(512) NOT NULL, 
	PRIMARY KEY (study_id)
);
INSERT INTO "studies" VALUES(1,'old');
CREATE TABLE study_directions (
	study_direction_id INTEGER NOT NULL, 
	direction VARCHAR(8) NOT NULL, 
	study_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	PRIMARY KEY (study_direction_id), 
	UNIQUE (study_id, objective), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_directions" VALUES(1,'MAXIMIZE',1,0);
CREATE TABLE study_system_attributes (
	study_system_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_system_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_system_attributes" VALUES(1,1,'study:metric_names','["regex ''value: (\\\\S+)'', last, maximize"]');
CREATE TABLE study_user_attributes (
	study_user_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_user_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_user_attributes" VALUES(1,1,'zenithtune','{"preset": "space", "args": {"space": "x=1,2,3,4,5,6"}, "command": "bash train.sh --x 1", "evaluator": "regex ''value: (\\\\S+)'', last, maximize", "working_folder": "/home/user/project", "options": ["--space", "x=1,2,3,4,5,6", "--strategy", "random", "--strategy-args", "seed=1", "--objective", "value: (\\S+)", "--maximize", "--n-trials", "5"]}');
INSERT INTO "study_user_attributes" VALUES(2,1,'zenithtune_tuner','null');
INSERT INTO "study_user_attributes" VALUES(3,1,'zenithtune:search','{"strategy": "random", "max_trials": 5, "num_slots": 1, "cluster": "", "begun_s": 1795024249.254547, "ended_s": 1795024252.1478198, "why_ended": "interrupted by SIGTERM", "memory_limit_bytes": null, "budget": {"training": {"hours": null, "steps": null}, "gpu_hours": null, "max_hours": null, "price": null}, "memory": {"max_bytes": null, "headroom": null}, "elapsed_s": 10.210454122000215, "verdict": {"sentence": "4.00x better (3.98 to 4.02, confirmed); the study took 3 GPU-seconds", "speedup": 4.0, "low": 3.9819671213435237, "high": 4.018114542995415, "lever_speedup": null, "layout_speedup": null, "lever_gains": [], "levers": [], "is_confirmed": true, "confirmed_on": "", "ties": [], "memory_share": null, "safer": null, "gpu_hours": 0.0007617372666666395, "cost": null, "pays_after_hours": null}, "tables": []}');
CREATE TABLE trial_heartbeats (
	trial_heartbeat_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	heartbeat DATETIME NOT NULL, 
	PRIMARY KEY (trial_heartbeat_id), 
	UNIQUE (trial_id), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_intermediate_values (
	trial_intermediate_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	intermediate_value FLOAT, 
	intermediate_value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_intermediate_value_id), 
	UNIQUE (trial_id, step), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_params (
	param_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	param_name VARCHAR(512), 
	param_value FLOAT, 
	distribution_json TEXT, 
	PRIMARY KEY (param_id), 
	UNIQUE (trial_id, param_name), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_params" VALUES(1,2,'x',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 3, 4, 5, 6]}}');
INSERT INTO "trial_params" VALUES(2,3,'x',4.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 3, 4, 5, 6]}}');
INSERT INTO "trial_params" VALUES(3,4,'x',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 3, 4, 5, 6]}}');
INSERT INTO "trial_params" VALUES(4,6,'x',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 3, 4, 5, 6]}}');
INSERT INTO "trial_params" VALUES(5,7,'x',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 3, 4, 5, 6]}}');
INSERT INTO "trial_params" VALUES(6,8,'x',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 3, 4, 5, 6]}}');
INSERT INTO "trial_params" VALUES(7,10,'x',5.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 3, 4, 5, 6]}}');
CREATE TABLE trial_system_attributes (
	trial_system_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_system_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_user_attributes (
	trial_user_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_user_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_user_attributes" VALUES(1,1,'run','{"identity": "bash train.sh --x 1", "is_baseline": true, "why": "", "label": "", "study_folder": "/home/user/project/out/old"}');
INSERT INTO "trial_user_attributes" VALUES(2,1,'result','{"outcome": "ok", "command": "bash train.sh --x 1", "cause": null, "failure": null, "early": null, "unit": "", "duration_s": 0.016697649000093406, "spread": null, "drift": null, "step_s": null, "peak_memory_bytes": null, "num_samples": null, "num_runs": 1, "extra": {}}');
INSERT INTO "trial_user_attributes" VALUES(3,2,'run','{"identity": "bash train.sh --x 2", "is_baseline": false, "why": "", "label": "x=2", "study_folder": "/home/user/project/out/old"}');
INSERT INTO "trial_user_attributes" VALUES(4,2,'result','{"outcome": "ok", "command": "bash train.sh --x 2", "cause": null, "failure": null, "early": null, "unit": "", "duration_s": 0.02308839399995577, "spread": null, "drift": null, "step_s": null, "peak_memory_bytes": null, "num_samples": null, "num_runs": 1, "extra": {}}');
INSERT INTO "trial_user_attributes" VALUES(5,3,'run','{"identity": "bash train.sh --x 5", "is_baseline": false, "why": "", "label": "x=5", "study_folder": "/home/user/project/out/old"}');
INSERT INTO "trial_user_attributes" VALUES(6,3,'result','{"outcome": "error", "command": "bash train.sh --x 5", "cause": "exit code 3: the log is empty", "failure": "crash", "early": null, "unit": "", "duration_s": 0.022472303999961696, "spread": null, "drift": null, "step_s": null, "peak_memory_bytes": null, "num_samples": null, "num_runs": 1, "extra": {}}');
INSERT INTO "trial_user_attributes" VALUES(7,4,'run','{"identity": "bash train.sh --x 2 # alone", "is_baseline": false, "why": "trial 1 again, to confirm it", "label": "x=2 (again)", "study_folder": "/home/user/project/out/old"}');
INSERT INTO "trial_user_attributes" VALUES(8,4,'result','{"outcome": "ok", "command": "bash train.sh --x 2", "cause": null, "failure": null, "early": null, "unit": "", "duration_s": 0.011830531999976301, "spread": null, "drift": null, "step_s": null, "peak_memory_bytes": null, "num_samples": null, "num_runs": 1, "extra": {}}');
INSERT INTO "trial_user_attributes" VALUES(9,5,'run','{"identity": "bash train.sh --x 1 # alone", "is_baseline": true, "why": "your own command again, to confirm the gain", "label": "", "study_folder": "/home/user/project/out/old"}');
INSERT INTO "trial_user_attributes" VALUES(10,5,'result','{"outcome": "ok", "command": "bash train.sh --x 1", "cause": null, "failure": null, "early": null, "unit": "", "duration_s": 0.026473591000012675, "spread": null, "drift": null, "step_s": null, "peak_memory_bytes": null, "num_samples": null, "num_runs": 1, "extra": {}}');
INSERT INTO "trial_user_attributes" VALUES(11,6,'run','{"identity": "bash train.sh --x 3", "is_baseline": false, "why": "", "label": "x=3", "study_folder": "/home/user/project/out/old"}');
INSERT INTO "trial_user_attributes" VALUES(12,6,'result','{"outcome": "ok", "command": "bash train.sh --x 3", "cause": null, "failure": null, "early": null, "unit": "", "duration_s": 0.018100308000043697, "spread": null, "drift": null, "step_s": null, "peak_memory_bytes": null, "num_samples": null, "num_runs": 1, "extra": {}}');
INSERT INTO "trial_user_attributes" VALUES(13,7,'run','{"identity": "bash train.sh --x 4", "is_baseline": false, "why": "", "label": "x=4", "study_folder": "/home/user/project/out/old"}');
INSERT INTO "trial_user_attributes" VALUES(14,7,'result','{"outcome": "ok", "command": "bash train.sh --x 4", "cause": null, "failure": null, "early": null, "unit": "", "duration_s": 0.006674559999964913, "spread": null, "drift": null, "step_s": null, "peak_memory_bytes": null, "num_samples": null, "num_runs": 1, "extra": {}}');
INSERT INTO "trial_user_attributes" VALUES(15,8,'run','{"identity": "bash train.sh --x 4 # alone", "is_baseline": false, "why": "trial 6 again, to confirm it", "label": "x=4 (again)", "study_folder": "/home/user/project/out/old"}');
INSERT INTO "trial_user_attributes" VALUES(16,8,'result','{"outcome": "ok", "command": "bash train.sh --x 4", "cause": null, "failure": null, "early": null, "unit": "", "duration_s": 0.01864733599995816, "spread": null, "drift": null, "step_s": null, "peak_memory_bytes": null, "num_samples": null, "num_runs": 1, "extra": {}}');
INSERT INTO "trial_user_attributes" VALUES(17,9,'run','{"identity": "bash train.sh --x 1 # 2 # alone", "is_baseline": true, "why": "your own command again, to confirm the gain", "label": "", "study_folder": "/home/user/project/out/old"}');
INSERT INTO "trial_user_attributes" VALUES(18,9,'result','{"outcome": "ok", "command": "bash train.sh --x 1", "cause": null, "failure": null, "early": null, "unit": "", "duration_s": 0.024865091000037864, "spread": null, "drift": null, "step_s": null, "peak_memory_bytes": null, "num_samples": null, "num_runs": 1, "extra": {}}');
INSERT INTO "trial_user_attributes" VALUES(19,10,'run','{"identity": "bash train.sh --x 6", "is_baseline": false, "why": "", "label": "x=6", "study_folder": "/home/user/project/out/old"}');
INSERT INTO "trial_user_attributes" VALUES(20,10,'result','{"outcome": "cancelled", "command": "bash train.sh --x 6", "cause": "interrupted", "failure": null, "early": null, "unit": "", "duration_s": 2.5998779859999104, "spread": null, "drift": null, "step_s": null, "peak_memory_bytes": null, "num_samples": null, "num_runs": 1, "extra": {}}');
CREATE TABLE trial_values (
	trial_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	value FLOAT, 
	value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_value_id), 
	UNIQUE (trial_id, objective), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_values" VALUES(1,1,0,100.0,'FINITE');
INSERT INTO "trial_values" VALUES(2,2,0,200.0,'FINITE');
INSERT INTO "trial_values" VALUES(3,4,0,200.0,'FINITE');
INSERT INTO "trial_values" VALUES(4,5,0,100.0,'FINITE');
INSERT INTO "trial_values" VALUES(5,6,0,300.0,'FINITE');
INSERT INTO "trial_values" VALUES(6,7,0,400.0,'FINITE');
INSERT INTO "trial_values" VALUES(7,8,0,400.0,'FINITE');
INSERT INTO "trial_values" VALUES(8,9,0,100.0,'FINITE');
CREATE TABLE trials (
	trial_id INTEGER NOT NULL, 
	number INTEGER, 
	study_id INTEGER, 
	state VARCHAR(8) NOT NULL, 
	datetime_start DATETIME, 
	datetime_complete DATETIME, 
	PRIMARY KEY (trial_id), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "trials" VALUES(1,0,1,'COMPLETE','2026-11-18 17:50:38.360437','2026-11-18 17:50:38.544022');
INSERT INTO "trials" VALUES(2,1,1,'COMPLETE','2026-11-18 17:50:38.599145','2026-11-18 17:50:38.703961');
INSERT INTO "trials" VALUES(3,2,1,'FAIL','2026-11-18 17:50:38.738050','2026-11-18 17:50:38.833275');
INSERT INTO "trials" VALUES(4,3,1,'COMPLETE','2026-11-18 17:50:38.870051','2026-11-18 17:50:38.982816');
INSERT INTO "trials" VALUES(5,4,1,'COMPLETE','2026-11-18 17:50:39.007027','2026-11-18 17:50:39.109344');
INSERT INTO "trials" VALUES(6,5,1,'COMPLETE','2026-11-18 17:50:44.113765','2026-11-18 17:50:44.260491');
INSERT INTO "trials" VALUES(7,6,1,'COMPLETE','2026-11-18 17:50:44.309956','2026-11-18 17:50:44.398236');
INSERT INTO "trials" VALUES(8,7,1,'COMPLETE','2026-11-18 17:50:44.431943','2026-11-18 17:50:44.529302');
INSERT INTO "trials" VALUES(9,8,1,'COMPLETE','2026-11-18 17:50:44.564346','2026-11-18 17:50:44.679673');
INSERT INTO "trials" VALUES(10,9,1,'FAIL','2026-11-18 17:50:49.305720','2026-11-18 17:50:52.113074');
CREATE TABLE version_info (
	version_info_id INTEGER NOT NULL, 
	schema_version INTEGER, 
	library_version VARCHAR(256), 
	PRIMARY KEY (version_info_id), 
	CHECK (version_info_id=1)
);
INSERT INTO "version_info" VALUES(1,12,'5.0.0');
CREATE UNIQUE INDEX ix_studies_study_name ON studies (study_name);
CREATE INDEX ix_trials_study_id ON trials (study_id);
COMMIT;